"""CRAFT-GUI (arXiv 2508.11360): a curriculum in phases by the length of trajectories."""

from dart_streams.config.section import Optional, Positive
from dart_streams.curation.hooks import Own, Rules


class Phase(Optional, frozen=True):
    """A phase of the curriculum."""

    groups: Positive
    """Groups in this phase."""
    max_steps: Positive
    """Only tasks with at most this many steps."""


class Settings(Optional, frozen=True):
    """The keys of ``[recipes.craft-gui]``."""

    phases: tuple[Phase, ...] = ()
    """Phases in order, easy tasks first; after the last one all tasks take part."""


def tasks_of_phase(own: Own, group: int, limits: dict[str, int], task_ids: tuple[str, ...]) -> tuple[str, ...]:
    """Return the tasks of the phase of group number ``group``; a phase without tasks has all."""
    end = 0
    for phase in own.settings.phases:
        end += phase.groups
        if group < end:
            return tuple(task_id for task_id in task_ids if limits[task_id] <= phase.max_steps) or task_ids
    return task_ids


RULES = Rules(eligible_tasks=tasks_of_phase)
