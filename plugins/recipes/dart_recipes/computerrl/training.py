"""Entropulse of ComputerRL (arXiv 2508.14040): supervised phases on the successes of the whole history.

A phase belongs to the step that makes it due and has no version: the staleness bound counts
``trainer.groups_per_step`` groups a version.
"""

import itertools
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from dart_recipes.computerrl.rules import Settings
from dart_streams import stateless_random
from dart_streams.curation.hooks import Own
from topics.curated import CuratedGroup
from trainer.data.successes import MAX_REMEMBERED, RememberedSuccess, sft_group, successes_of
from trainer.hooks import StepStart, TrainingRules


class PhaseMemory(msgspec.Struct):
    """Steps since the last phase, and the newest successes of the policy, oldest first."""

    steps: int = 0
    history: list[RememberedSuccess] = []


def is_due(own: Own) -> bool:
    """Return whether the next step ends with a phase: each ``every``-th, if there is a success."""
    return own.settings.every <= own.memory.steps + 1 and bool(own.memory.history)


def supervised_phase(own: Own, step: StepStart) -> list[CuratedGroup]:
    """Return the groups of a phase, one an update; none unless it is due."""
    return phase_groups(own.memory.history, own.settings, step.train_step) if is_due(own) else []


def phase_groups(history: Sequence[RememberedSuccess], settings: Settings, train_step: int) -> list[CuratedGroup]:
    """Return a phase's groups, one an update, each trajectory at most once; tasks take turns in a drawn order."""
    of_tasks: defaultdict[str, list[RememberedSuccess]] = defaultdict(list)
    for success in history:
        of_tasks[success.task_id].append(success)
    lines = [
        sorted(own, key=lambda success: stateless_random.number("imitated", train_step, success.trajectory_id))
        for _, own in sorted(of_tasks.items(), key=lambda item: stateless_random.number("task", train_step, item[0]))
    ]
    turns = [success for turn in itertools.zip_longest(*lines) for success in turn if success is not None]
    chosen = turns[: settings.updates * settings.trajectories]
    return [
        sft_group(f"phase-{train_step:06d}-{number}", chosen[start : start + settings.trajectories])
        for number, start in enumerate(range(0, len(chosen), settings.trajectories))
    ]


def remember_step(own: Own, batch: Sequence[CuratedGroup]) -> None:
    """Remember a step and the successes of its batch; they may be drawn again."""
    memory: PhaseMemory = own.memory
    memory.steps = 0 if is_due(own) else memory.steps + 1
    memory.history = [*memory.history, *successes_of(batch)][-MAX_REMEMBERED:]


RULES = TrainingRules(supervised_phase=supervised_phase, remember=remember_step, memory=PhaseMemory)
