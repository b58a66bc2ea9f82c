"""Self-imitation of a step: groups beside its batch, and those of a supervised phase at its end. Pure."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dart_streams.config import Trainer
from topics.curated import CuratedGroup
from trainer.data.successes import SuccessMemory, draw_uniformly, sft_group, subject_of
from trainer.hooks import StepStart, TrainingRules, is_pretraining


class StepImitation(NamedTuple):
    """Groups that a step imitates: ``beside`` its batch, with ``feedback``, then ``phase``, one update each."""

    beside: list[CuratedGroup]
    phase: list[CuratedGroup]
    feedback: tuple[CuratedGroup, ...] = ()

    @property
    def groups(self) -> list[CuratedGroup]:
        """All groups in read order."""
        return [*self.beside, *self.phase, *self.feedback]


def plan_imitation(
    memory: SuccessMemory, settings: Trainer, rules: TrainingRules, memories: dict[str, Any], step: StepStart
) -> StepImitation:
    """Return what a step imitates, from successes of earlier steps; nothing while a critic is pretrained.

    ``rules`` are bound, with their ``memories``.
    """
    if is_pretraining(rules, step):
        return StepImitation([], [])
    imitate = settings.imitate
    drawn = draw_uniformly(memory.history, imitate.trajectories, imitate.recent, step.seed, step.train_step)
    return StepImitation(
        beside=[sft_group(f"imitate-{step.train_step:06d}", drawn)] if drawn else [],
        phase=rules.supervised_phase(memories, step) if rules.supervised_phase else [],
        feedback=memory.feedback,
    )


def drop_replaced(
    planned: StepImitation, said: Sequence[CuratedGroup], forget: Callable[[CuratedGroup], object]
) -> StepImitation:
    """Return a step's imitation without earlier feedback that groups ``said`` meanwhile replace; that is forgotten."""
    replaced = [group for group in planned.feedback if subject_of(group) in {subject_of(one) for one in said}]
    for group in replaced:
        forget(group)
    return planned._replace(feedback=tuple(group for group in planned.feedback if group not in replaced))


def trajectories_of(group: CuratedGroup) -> list[str]:
    """Return the trajectory ids of a group."""
    return [member.trajectory_id for member in group.members]
