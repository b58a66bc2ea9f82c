"""Memory of the policy's own successes to imitate. Pure. No staleness bound applies, as imitation has no weights."""

import heapq
from collections.abc import Iterable, Sequence

import msgspec

from dart_streams import stateless_random
from dart_streams.config import Trainer
from topics.curated import CuratedGroup, Member
from topics.outcomes import is_success

MAX_REMEMBERED = 4096
"""Maximum history in a checkpoint: about half a megabyte."""


class RememberedSuccess(msgspec.Struct, frozen=True, kw_only=True):
    """A trajectory that solved its task, and its steps selected for training."""

    trajectory_id: str
    task_id: str
    selected: list[int]


class SuccessMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The newest successes, oldest first, and the newest groups of ``feedback`` to imitate."""

    history: tuple[RememberedSuccess, ...] = ()
    feedback: tuple[CuratedGroup, ...] = ()

    def after_step(self, groups: Iterable[CuratedGroup], limit: int) -> "SuccessMemory":
        """Return the memory after a step on ``groups``; the last ``limit`` successes stay."""
        history = (*self.history, *successes_of(groups))
        return msgspec.structs.replace(self, history=history[max(0, len(history) - limit) :])

    def after_feedback(self, groups: Sequence[CuratedGroup], limit: int) -> "SuccessMemory":
        """Return the memory after groups of feedback, which replace earlier ones of their subjects."""
        subjects = {subject_of(group) for group in groups}
        kept = [group for group in self.feedback if subject_of(group) not in subjects]
        feedback = (*kept, *(group for group in groups if group.is_supervised))
        return msgspec.structs.replace(self, feedback=feedback[max(0, len(feedback) - limit) :])


def subject_of(group: CuratedGroup) -> tuple[str, int | None]:
    """Return the trajectory that a group of feedback is about, and the step if it corrects one."""
    [member] = group.members
    return member.trajectory_id, member.selected[0] if member.corrections else None


def successes_of(groups: Iterable[CuratedGroup]) -> list[RememberedSuccess]:
    """Return the successes of online rollouts; pool members are not the policy's own."""
    return [
        RememberedSuccess(trajectory_id=member.trajectory_id, task_id=group.task_id, selected=member.selected)
        for group in groups
        for member in group.members
        if member.source == "online" and is_success(member.reward) and member.selected
    ]


def history_limit(settings: Trainer) -> int:
    """Return the number of successes that the configured imitation needs."""
    return settings.imitate.recent if settings.imitate.trajectories else 0


def draw_uniformly(
    history: Sequence[RememberedSuccess], count: int, recent: int, seed: int, train_step: int
) -> list[RememberedSuccess]:
    """Return ``count`` of the ``recent`` newest successes, or none if too few; every rank draws the same."""
    eligible = history[max(0, len(history) - recent) :]
    if len(eligible) < count:
        return []
    return heapq.nsmallest(
        count, eligible, key=lambda success: stateless_random.number("imitate", seed, train_step, success.trajectory_id)
    )


def sft_group(group_id: str, successes: Iterable[RememberedSuccess]) -> CuratedGroup:
    """Return successes as a group of advantage 1, from the pool so that no correction applies."""
    members = [
        Member(
            trajectory_id=success.trajectory_id,
            reward=1.0,
            advantage=1.0,
            selected=success.selected,
            source="pool",
            version_min=None,
            version_max=None,
        )
        for success in successes
    ]
    return CuratedGroup(group_id=group_id, task_id="", members=members, mean=1.0, std=0.0)


def replay_group(train_step: int, members: Sequence[Member]) -> list[CuratedGroup]:
    """Return the trajectories that ``train_step`` replays as one group; none without any."""
    if not members:
        return []
    return [CuratedGroup(group_id=f"replay-{train_step:06d}", task_id="", members=list(members), mean=0.0, std=0.0)]
