"""The policy's own past successes: what the trainer remembers of them, and which are drawn to imitate. Pure.

One memory for both kinds of imitation: beside each batch (``trainer.imitate``) and in phases (``trainer.entropulse``).
The staleness bound does not apply to either: it bounds how far importance weights have to correct, and the likelihood
of a success needs no correction, whatever version it came from.
"""

import heapq
from collections.abc import Iterable, Sequence

import msgspec

from dart_streams import stateless_random
from dart_streams.config import Trainer
from topics.curated import CuratedGroup, Member
from topics.outcomes import is_success

MAX_REMEMBERED = 4096
"""The longest history, which is written with each checkpoint: about half a megabyte."""


class RememberedSuccess(msgspec.Struct, frozen=True, kw_only=True):
    """A trajectory that solved its task, with the steps of it that were selected for training."""

    trajectory_id: str
    task_id: str
    selected: list[int]


class SuccessMemory(msgspec.Struct, frozen=True, kw_only=True):
    """``steps`` of reinforcement learning since the last supervised phase, and the newest successes, oldest first."""

    steps: int = 0
    history: tuple[RememberedSuccess, ...] = ()

    def after_step(self, groups: Iterable[CuratedGroup], kept: int) -> "SuccessMemory":
        """Return the memory after a step on ``groups``: the last ``kept`` successes stay."""
        history = (*self.history, *successes_of(groups))
        return SuccessMemory(steps=self.steps + 1, history=history[max(0, len(history) - kept) :])

    def after_phase(self) -> "SuccessMemory":
        """Return the memory after a supervised phase: successes may be imitated again in the next one."""
        return msgspec.structs.replace(self, steps=0)


def successes_of(groups: Iterable[CuratedGroup]) -> list[RememberedSuccess]:
    """Return the successes of the policy's own rollouts; demonstrations and others from the pool are not its own."""
    return [
        RememberedSuccess(trajectory_id=member.trajectory_id, task_id=group.task_id, selected=member.selected)
        for group in groups
        for member in group.members
        if member.source == "online" and is_success(member.reward) and member.selected
    ]


def history_limit(settings: Trainer) -> int:
    """Return how many successes a deployment's trainer has to remember."""
    if settings.entropulse.every:
        return MAX_REMEMBERED
    return settings.imitate.recent if settings.imitate.trajectories else 0


def draw_uniformly(
    history: Sequence[RememberedSuccess], count: int, recent: int, seed: int, train_step: int
) -> list[RememberedSuccess]:
    """Return ``count`` different ones of the ``recent`` newest successes, each set of them as likely as any other.

    None as long as there are fewer than ``count``: the same few would be imitated over and over. The draw depends on
    its arguments alone, so every rank, a resumed trainer and a repeated step draw the same.
    """
    eligible = history[max(0, len(history) - recent) :]
    if len(eligible) < count:
        return []
    return heapq.nsmallest(
        count, eligible, key=lambda success: stateless_random.number("imitate", seed, train_step, success.trajectory_id)
    )


def sft_group(group_id: str, successes: Iterable[RememberedSuccess]) -> CuratedGroup:
    """Return successes as a group to imitate, all of advantage 1.

    They count as from the pool, whose tokens are not corrected for the engine that drew them.
    """
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
