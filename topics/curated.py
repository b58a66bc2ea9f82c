"""curated: finished groups with their advantages and selected steps, ready for training."""

from typing import Literal

import msgspec

from topics.topic import Topic
from topics.values import Name, Prose, Real, Reward, Steps, Version


class Member(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One trajectory of a group. ``selected`` has the indexes (from 0) of the actions to train on, in order.

    ``step_advantages`` has one advantage per entry of ``selected`` where steps are credited individually. Otherwise
    it is omitted, and ``advantage`` applies to all steps. Readers that ignore it train on ``advantage``.

    ``corrections`` has one action per entry of ``selected``, in the native grammar and in pixels of the policy's image:
    a person's, to train on in place of the policy's answer. It is omitted where the policy's own answers count.

    ``as_online`` is true for a member from the pool whose log-probabilities correct its steps, as an online one's do.
    It is omitted where they have weight 1.
    """

    trajectory_id: Name
    reward: Reward
    advantage: Real
    selected: list[Steps]
    source: Literal["online", "pool"]
    version_min: Version | None
    version_max: Version | None
    step_advantages: list[Real] = []
    corrections: list[Prose] = []
    as_online: bool = False


class CuratedGroup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A group to train on. ``mean`` and ``std`` are the step-level reward statistics behind the advantages.

    ``feedback`` has the ids of the feedback that a group was made of, and is omitted for groups of rollouts. Such a
    group is trained beside a batch. It takes no place in it, and counts for neither ``groups_consumed`` nor dispatch.
    """

    group_id: Name
    task_id: Name
    members: list[Member]
    mean: Real
    std: Real
    feedback: list[Name] = []

    @property
    def is_supervised(self) -> bool:
        """Whether the group is made of feedback to imitate; other feedback is a policy gradient."""
        return bool(self.feedback) and all(member.source == "pool" for member in self.members)


TOPIC = Topic(name="curated", event=CuratedGroup, key="group_id")
