"""curated: finished groups with their advantages and selected steps, ready for training."""

from typing import Literal

import msgspec

from topics.topic import Topic
from topics.values import Name, Real, Reward, Steps, Version


class Member(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One trajectory of a group. ``selected`` has the indexes (from 0) of the actions to train on, in order.

    ``step_advantages`` has one advantage per entry of ``selected`` where steps are credited individually. Otherwise
    it is omitted, and ``advantage`` applies to all steps. Readers that ignore it train on ``advantage``.
    """

    trajectory_id: Name
    reward: Reward
    advantage: Real
    selected: list[Steps]
    source: Literal["online", "pool"]
    version_min: Version | None
    version_max: Version | None
    step_advantages: list[Real] = []


class CuratedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group to train on. ``mean`` and ``std`` are the step-level reward statistics behind the advantages."""

    group_id: Name
    task_id: Name
    members: list[Member]
    mean: Real
    std: Real


TOPIC = Topic(name="curated", event=CuratedGroup, key="group_id")
