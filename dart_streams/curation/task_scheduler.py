"""Which task gets the next group.

Tasks are visited in passes, each pass in another shuffled order. A task with little to learn from is skipped at random,
but never ``PATIENCE`` times in a row, so none starves: of ``n`` tasks, one without an open group gets its next within
``(PATIENCE + 1) x n`` groups. A task that always succeeds has no learning signal: it gets no groups, only a probe (a
single rollout) now and then; a regression then shows in its rate, and it gets groups again.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec

from dart_streams import stateless_random
from dart_streams.config import Curation

MIN_WEIGHT = 0.1
"""The smallest weight, of a task that nearly always or never succeeds."""
PATIENCE = 4
"""Passes within which a task is chosen once at least, whatever its weight: none starves."""
PROBE_EVERY = 32
"""Of this many groups one is a probe of a solved task: rare enough to cost little, yet forgetting is noticed."""


class TaskState(msgspec.Struct):
    """What dispatch keeps of a task: its budget, its last finishes (true for a success), and its groups.

    ``rollouts`` and ``max_steps`` are None before the first budget; ``open`` counts its open groups, ``failures`` its
    failed finishes in a row; it rests until pass ``rests_until``.
    """

    rollouts: int | None = None
    max_steps: int | None = None
    finishes: list[bool] = []
    solved: bool = False
    skips: int = 0
    last_group: int = -1
    open: int = 0
    failures: int = 0
    rests_until: int = 0

    def add_finish(self, success: bool, window: int) -> None:
        """Add a rewarded finish; ``solved`` is true after a whole window of successes."""
        self.failures = 0 if success else self.failures + 1
        self.finishes.append(success)
        del self.finishes[:-window]
        self.solved = len(self.finishes) == window and all(self.finishes)


class TaskScheduler(msgspec.Struct):
    """The current pass over the tasks, and the position in it."""

    pass_index: int = msgspec.field(default=0, name="turn")
    position: int = 0


@lru_cache(maxsize=4)
def shuffle_tasks(task_ids: tuple[str, ...], seed: int, pass_index: int) -> tuple[str, ...]:
    """Return the tasks in the order of pass ``pass_index``, which depends only on it and on the seed."""
    return tuple(sorted(task_ids, key=lambda name: (stateless_random.number("turn", seed, pass_index, name), name)))


def signal_weight(finishes: Sequence[bool]) -> float:
    """Return a task's expected learning signal in (0, 1]: 4 p (1 - p) of its success rate, add-one smoothed.

    The signal of a group is the differences within it, and those are most likely at a rate of one half. A task never
    tried has weight 1.
    """
    rate = (sum(finishes) + 1) / (len(finishes) + 2)
    return max(MIN_WEIGHT, 4.0 * rate * (1.0 - rate))


def next_task(
    scheduler: TaskScheduler, tasks: dict[str, TaskState], task_ids: tuple[str, ...], number: int, settings: Curation
) -> tuple[str, bool]:
    """Return the task of group ``number``, and whether it only gets a probe.

    A task with an open group waits for the next pass, unless all others are solved or have one too.
    """

    def least_recent(task_id: str) -> tuple[int, int]:
        return tasks[task_id].open, tasks[task_id].last_group

    probed = probe(tasks, task_ids, number, settings)
    if probed is not None:
        return probed, True
    chosen = next_in_pass(scheduler, tasks, task_ids, settings)
    if chosen is None:
        unsolved = [task_id for task_id in task_ids if not is_solved(state_of(tasks, task_id), settings)]
        chosen = min(unsolved, key=least_recent, default=None)
    if chosen is not None:
        return chosen, False
    return min(task_ids, key=least_recent), True


def probe(tasks: dict[str, TaskState], task_ids: tuple[str, ...], number: int, settings: Curation) -> str | None:
    """Return the solved task that was longest without an order, if group ``number`` is one of those for probes."""
    if number % PROBE_EVERY != PROBE_EVERY - 1:
        return None
    idle = [name for name in task_ids if is_solved(state_of(tasks, name), settings) and not tasks[name].open]
    return min(idle, key=lambda name: tasks[name].last_group, default=None)


def state_of(tasks: dict[str, TaskState], task_id: str) -> TaskState:
    """Return the state of a task, adding an empty one if it has none yet."""
    return tasks.setdefault(task_id, TaskState())


def is_solved(task: TaskState, settings: Curation) -> bool:
    """Say whether a task gets probes only; never without the dynamic rollout number."""
    return task.solved and settings.budget.dynamic


def next_in_pass(
    scheduler: TaskScheduler, tasks: dict[str, TaskState], task_ids: tuple[str, ...], settings: Curation
) -> str | None:
    """Return the next task of the passes that is not skipped; None if each is solved or has an open group."""
    if not any(is_free(state_of(tasks, task_id), settings) for task_id in task_ids):
        return None
    while True:
        if scheduler.position >= len(task_ids):
            scheduler.pass_index, scheduler.position = scheduler.pass_index + 1, 0
        task_id = shuffle_tasks(task_ids, settings.dispatch.seed, scheduler.pass_index)[scheduler.position]
        scheduler.position += 1
        task = state_of(tasks, task_id)
        if 0 < settings.mobilerl.rest_after <= task.failures:
            task.failures, task.rests_until = 0, scheduler.pass_index + settings.mobilerl.rest_passes
        if scheduler.pass_index < task.rests_until or not is_free(task, settings):
            continue
        if not is_skipped(task, settings, scheduler.pass_index, task_id):
            task.skips = 0
            return task_id
        task.skips += 1


def is_free(task: TaskState, settings: Curation) -> bool:
    """Say whether a task may get a group: it has none open, and is not solved."""
    return not task.open and not is_solved(task, settings)


def in_phase(task_ids: tuple[str, ...], limits: Mapping[str, int], number: int, settings: Curation) -> tuple[str, ...]:
    """Return the tasks that take part when group ``number`` opens: those of the present phase, in the end all.

    ``limits`` has each task's step limit. A phase without tasks is no phase: all take part.
    """
    end = 0
    for phase in settings.craft_gui.phases:
        end += phase.groups
        if number < end:
            return tuple(task_id for task_id in task_ids if limits[task_id] <= phase.max_steps) or task_ids
    return task_ids


def is_skipped(task: TaskState, settings: Curation, pass_index: int, task_id: str) -> bool:
    """Say whether a task is skipped in this pass: at random by its weight, and never ``PATIENCE`` times in a row."""
    dispatch = settings.dispatch
    if dispatch.choice == "even" or task.skips + 1 >= PATIENCE:
        return False
    return stateless_random.share("turn lost", dispatch.seed, pass_index, task_id) >= signal_weight(task.finishes)
