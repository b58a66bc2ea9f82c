"""What a step imitates of the policy's own past: beside its batch, and in a supervised phase at its end. Pure."""

from typing import NamedTuple

from dart_streams.config import Trainer
from topics.curated import CuratedGroup
from trainer.data.successes import SuccessMemory, draw_uniformly, sft_group
from trainer.learning import sft_phase


class StepImitation(NamedTuple):
    """What a step imitates: ``beside`` its batch, and then in the updates of a supervised ``phase``."""

    beside: list[CuratedGroup]
    phase: list[CuratedGroup]

    @property
    def groups(self) -> list[CuratedGroup]:
        """All of it, in the order in which it is read."""
        return [*self.beside, *self.phase]


def plan_imitation(memory: SuccessMemory, settings: Trainer, seed: int, train_step: int) -> StepImitation:
    """Return what ``train_step`` imitates, from the successes of the steps before it."""
    imitate = settings.imitate
    drawn = draw_uniformly(memory.history, imitate.trajectories, imitate.recent, seed, train_step)
    phase = sft_phase.is_due(memory, settings.entropulse)
    return StepImitation(
        beside=[sft_group(f"imitate-{train_step:06d}", drawn)] if drawn else [],
        phase=sft_phase.sft_groups(memory.history, settings.entropulse, train_step) if phase else [],
    )


def trajectories_of(group: CuratedGroup) -> list[str]:
    """Return the ids of a group's trajectories."""
    return [member.trajectory_id for member in group.members]
