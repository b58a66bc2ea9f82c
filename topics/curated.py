"""curated: a finished group with its advantages and selected steps, ready to train on."""

from typing import Literal

import msgspec

from topics.topic import Topic


class Member(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One trajectory of a group. ``selected`` has the indexes (from 0) of the actions to train on, in order.

    ``step_advantages`` has one advantage for each of ``selected`` where steps are credited individually; otherwise
    it is omitted, and ``advantage`` is that of all steps. A reader that does not know it trains on ``advantage``.
    """

    trajectory_id: str
    reward: float
    advantage: float
    selected: list[int]
    source: Literal["online", "pool"]
    version_min: int | None
    version_max: int | None
    step_advantages: list[float] = []


class CuratedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group to train on. ``mean`` and ``std`` are the step-level reward statistics of the advantages."""

    group_id: str
    task_id: str
    members: list[Member]
    mean: float
    std: float


TOPIC = Topic(name="curated", event=CuratedGroup, key="group_id")
