"""What is kept of ended rollouts, and members of groups that are made of them."""

from collections.abc import Sequence
from itertools import islice
from typing import Any, TypeVar

import msgspec

from topics.curated import CuratedGroup, Member
from topics.trajectories import StepAction
from topics.values import Purpose

Key = TypeVar("Key", str, int)


class Finish(msgspec.Struct, frozen=True):
    """A rewarded rollout of an open group.

    ``screens`` has the key of the screen before each step, and ``actions`` the action; both are empty in old records.
    ``recorded`` has the indexes of the steps that a recording or a person took in place of the policy.
    """

    sample: int
    trajectory_id: str
    reward: float
    steps: int
    step_entropies: list[float]
    version_min: int | None
    version_max: int | None
    screens: list[str] = []
    actions: list[StepAction] = []
    task_id: str = ""
    recorded: list[int] = []

    @property
    def own(self) -> list[int]:
        """The indexes of the policy's own steps, in order."""
        recorded = frozenset(self.recorded)
        return [step for step in range(self.steps) if step not in recorded]


class PooledSuccess(msgspec.Struct, frozen=True, omit_defaults=True):
    """A successful trajectory, demonstrated or online; ``steps`` counts actions.

    With ``as_online`` it is selected and weighed as an online one, by its entropies where each step has one.
    """

    trajectory_id: str
    order_id: str
    reward: float
    steps: int
    as_online: bool = False
    step_entropies: list[float] = []

    @property
    def own(self) -> list[int]:
        """The indexes of all steps: a stored success has none of another recording."""
        return list(range(self.steps))


GroupMember = Finish | PooledSuccess


class EndedRollout(msgspec.Struct, frozen=True):
    """What is kept of an ended trajectory; ``reward`` is the one that counts so far, None without any.

    ``own`` are the indexes of the policy's steps, if they are credited, and ``person`` those of people. ``version_min``
    is None if its tokens can't be trained on.
    """

    task_id: str
    purpose: Purpose
    reward: float | None
    steps: int
    own: list[int]
    version_min: int | None
    version_max: int | None
    person: list[int] = []


def forget_oldest(items: dict[Key, Any], most: int) -> list[Key]:
    """Remove the oldest items beyond ``most``, and return their keys."""
    oldest = list(islice(items, max(0, len(items) - most)))
    for name in oldest:
        del items[name]
    return oldest


def imitated_member(trajectory_id: str, reward: float, selected: list[int], corrections: Sequence[str] = ()) -> Member:
    """Return a trajectory to imitate in the steps ``selected``, or in the ``corrections`` of those."""
    return Member(
        trajectory_id=trajectory_id,
        reward=reward,
        advantage=1.0,
        selected=selected,
        source="pool",
        version_min=None,
        version_max=None,
        corrections=list(corrections),
    )


def single_group(group_id: str, feedback: list[str], rollout: EndedRollout, member: Member) -> CuratedGroup:
    """Return a group of one trajectory, made of feedback of these ids."""
    return CuratedGroup(
        group_id=group_id, task_id=rollout.task_id, members=[member], mean=member.reward, std=0.0, feedback=feedback
    )
