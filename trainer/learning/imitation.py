"""Self-imitation of a step: groups beside its batch, and a supervised phase at its end. Pure.

A phase (Entropulse, ComputerRL, arXiv 2508.14040) fine-tunes on successes of the whole history. It belongs to the step
that makes it due and has no version: the staleness bound counts ``trainer.groups_per_step`` groups a version.
"""

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from dart_streams import stateless_random
from dart_streams.config import Entropulse, Trainer
from topics.curated import CuratedGroup
from trainer.data.successes import RememberedSuccess, SuccessMemory, draw_uniformly, sft_group


class StepImitation(NamedTuple):
    """Groups that a step imitates: ``beside`` its batch, then ``phase``, one update each."""

    beside: list[CuratedGroup]
    phase: list[CuratedGroup]

    @property
    def groups(self) -> list[CuratedGroup]:
        """All groups in read order."""
        return [*self.beside, *self.phase]


def plan_imitation(memory: SuccessMemory, settings: Trainer, seed: int, train_step: int) -> StepImitation:
    """Return what ``train_step`` imitates, from successes of earlier steps."""
    imitate = settings.imitate
    drawn = draw_uniformly(memory.history, imitate.trajectories, imitate.recent, seed, train_step)
    phase = is_due(memory, settings.entropulse)
    return StepImitation(
        beside=[sft_group(f"imitate-{train_step:06d}", drawn)] if drawn else [],
        phase=sft_groups(memory.history, settings.entropulse, train_step) if phase else [],
    )


def trajectories_of(group: CuratedGroup) -> list[str]:
    """Return the trajectory ids of a group."""
    return [member.trajectory_id for member in group.members]


def is_due(memory: SuccessMemory, settings: Entropulse) -> bool:
    """Return whether the next step ends with a phase: each ``every``-th, if there is a success."""
    return 0 < settings.every <= memory.steps + 1 and bool(memory.history)


def sft_groups(history: Sequence[RememberedSuccess], settings: Entropulse, train_step: int) -> list[CuratedGroup]:
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
