"""Supervised phases between steps of reinforcement learning: when one is due, and what it imitates. Pure.

Reinforcement learning lowers a policy's entropy until it explores no more. Entropulse (ComputerRL, arXiv 2508.14040)
then fine-tunes it on a varied choice of its own past successes, which raises its entropy, and resumes.
"""

import itertools
from collections.abc import Iterable, Mapping

import msgspec

from dart_streams import stateless_random
from dart_streams.config import Entropulse
from dart_streams.curation.advantages import is_success
from topics.curated import CuratedGroup, Member


class RememberedSuccess(msgspec.Struct, frozen=True):
    """A trajectory that solved its task, with the steps of it that were selected for training."""

    trajectory_id: str
    selected: list[int]


class SuccessMemory(msgspec.Struct, frozen=True, kw_only=True):
    """``steps`` of reinforcement learning since the last phase, and each task's newest successes, oldest first."""

    steps: int = 0
    successes: dict[str, tuple[RememberedSuccess, ...]] = {}

    def after_step(self, groups: Iterable[CuratedGroup], kept: int) -> "SuccessMemory":
        """Return the memory after a step on ``groups``: the last ``kept`` successes of a task's own rollouts stay."""
        successes = dict(self.successes)
        for group in groups:
            won = [
                RememberedSuccess(member.trajectory_id, member.selected)
                for member in group.members
                if member.source == "online" and is_success(member.reward) and member.selected
            ]
            if won and kept:
                successes[group.task_id] = (*successes.get(group.task_id, ()), *won)[-kept:]
        return SuccessMemory(steps=self.steps + 1, successes=successes)

    def after_phase(self) -> "SuccessMemory":
        """Return the memory after a supervised phase: successes may be imitated again in the next one."""
        return SuccessMemory(steps=0, successes=self.successes)


def is_due(memory: SuccessMemory, settings: Entropulse) -> bool:
    """Return whether a supervised phase is due: after ``every`` steps, if there is any success."""
    return 0 < settings.every <= memory.steps and bool(memory.successes)


def sft_groups(
    successes: Mapping[str, tuple[RememberedSuccess, ...]], settings: Entropulse, train_step: int
) -> list[CuratedGroup]:
    """Return what the phase at ``train_step`` imitates: a group an update, each trajectory at most once.

    Tasks take turns, in an order drawn for this phase, so that none fills an update while another has a success left.
    With fewer successes than asked for, there are fewer updates.
    """
    lines = [
        sorted(own, key=lambda success: stateless_random.number("imitated", train_step, success.trajectory_id))
        for _, own in sorted(successes.items(), key=lambda item: stateless_random.number("task", train_step, item[0]))
    ]
    turns = [success for turn in itertools.zip_longest(*lines) for success in turn if success is not None]
    chosen = turns[: settings.updates * settings.trajectories]
    return [
        sft_group(f"pulse-{train_step:06d}-{number}", chosen[start : start + settings.trajectories])
        for number, start in enumerate(range(0, len(chosen), settings.trajectories))
    ]


def sft_group(group_id: str, successes: Iterable[RememberedSuccess]) -> CuratedGroup:
    """Return successes as a group to train on, all of advantage 1: the gradient is then that of their likelihood.

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
