"""Choice of the task for the next group.

Tasks are visited in passes, each in another shuffled order. Tasks with little to learn are skipped at random, but never
``PATIENCE`` times in a row. So one of ``n`` tasks without an open group gets its next within ``(PATIENCE + 1) x n``
groups. A task that always succeeds has no signal: it only gets an occasional probe (a single rollout), and groups again
once its rate falls. Under the choice ``even`` nothing is skipped or probed.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import msgspec

from dart_streams import stateless_random
from dart_streams.config import Curation
from dart_streams.curation.hooks import Own, Turn

MIN_WEIGHT = 0.1
"""Minimum weight, of a task that nearly always or never succeeds."""
PATIENCE = 4
"""Passes within which each task is chosen at least once."""
MAX_PASSES = 64
"""Passes without a turn after which a task is chosen whatever its weight; the rules of a recipe may pass all over."""
PROBE_EVERY = 32
"""One of this many groups probes a solved task: rare enough to be cheap, and forgetting is noticed."""


TurnWeight = Callable[[Turn], float]


class TaskState(msgspec.Struct):
    """Dispatch's view of a task: budget, recent finishes (true for a success), and groups.

    ``rollouts`` and ``max_steps`` are None before the first budget; ``open`` counts open groups, ``failures``
    consecutive failed finishes.
    """

    rollouts: int | None = None
    max_steps: int | None = None
    finishes: list[bool] = []
    solved: bool = False
    skips: int = 0
    last_group: int = -1
    open: int = 0
    failures: int = 0

    def add_finish(self, success: bool, window: int) -> None:
        """Add a rewarded finish; ``solved`` is true after a full window of successes."""
        self.failures = 0 if success else self.failures + 1
        self.finishes.append(success)
        del self.finishes[:-window]
        self.solved = len(self.finishes) == window and all(self.finishes)

    def step_limit(self, limit: int) -> int:
        """Return the step limit of its next group, at most the task's ``limit``."""
        return min(self.max_steps or limit, limit)


class TaskScheduler(msgspec.Struct):
    """The current pass over the tasks, and the position in it."""

    pass_index: int = msgspec.field(default=0, name="turn")
    position: int = 0


@lru_cache(maxsize=4)
def shuffle_tasks(task_ids: tuple[str, ...], seed: int, pass_index: int) -> tuple[str, ...]:
    """Return the tasks in the order of pass ``pass_index``, determined by it and the seed."""
    return tuple(sorted(task_ids, key=lambda name: (stateless_random.number("turn", seed, pass_index, name), name)))


def signal_weight(finishes: Sequence[bool]) -> float:
    """Return a task's expected learning signal in (0, 1]: 4 p (1 - p) of its success rate, add-one smoothed.

    Differences within a group are the signal, and most likely at a rate of one half. An untried task has weight 1.
    """
    rate = (sum(finishes) + 1) / (len(finishes) + 2)
    return max(MIN_WEIGHT, 4.0 * rate * (1.0 - rate))


def next_task(
    scheduler: TaskScheduler,
    tasks: dict[str, TaskState],
    task_ids: tuple[str, ...],
    number: int,
    settings: Curation,
    weight: TurnWeight,
    limits: Mapping[str, int],
) -> tuple[str, bool]:
    """Return the task of group ``number``, and whether it only gets a probe; ``limits`` has the tasks' step limits.

    A task with an open group waits for the next pass, unless all others are solved or have one too.
    """

    def least_recent(task_id: str) -> tuple[int, int]:
        return tasks[task_id].open, tasks[task_id].last_group

    probed = choose_probe(tasks, task_ids, number, settings)
    if probed is not None:
        return probed, True
    chosen = next_in_pass(scheduler, tasks, task_ids, settings, weight, limits)
    if chosen is None:
        unsolved = [task_id for task_id in task_ids if not is_solved(state_of(tasks, task_id), settings)]
        chosen = min(unsolved, key=least_recent, default=None)
    if chosen is not None:
        return chosen, False
    return min(task_ids, key=least_recent), True


def choose_probe(tasks: dict[str, TaskState], task_ids: tuple[str, ...], number: int, settings: Curation) -> str | None:
    """Return the solved task without an order for longest, if group ``number`` is a probe; else None."""
    if number % PROBE_EVERY != PROBE_EVERY - 1:
        return None
    idle = [name for name in task_ids if is_solved(state_of(tasks, name), settings) and not tasks[name].open]
    return min(idle, key=lambda name: tasks[name].last_group, default=None)


def state_of(tasks: dict[str, TaskState], task_id: str) -> TaskState:
    """Return the state of a task, added if missing."""
    return tasks.setdefault(task_id, TaskState())


def is_solved(task: TaskState, settings: Curation) -> bool:
    """Return whether a task only gets probes; never without dynamic budgets, nor if all tasks have their turns."""
    return task.solved and settings.budget.dynamic and settings.dispatch.choice == "informative"


def next_in_pass(
    scheduler: TaskScheduler,
    tasks: dict[str, TaskState],
    task_ids: tuple[str, ...],
    settings: Curation,
    weight: TurnWeight,
    limits: Mapping[str, int],
) -> str | None:
    """Return the next task of the passes that takes its turn; None if each is solved or has an open group.

    If no task takes a turn in :data:`MAX_PASSES` passes, the first free one of the last pass does.
    """
    if not any(is_free(state_of(tasks, task_id), settings) for task_id in task_ids):
        return None
    last = scheduler.pass_index + MAX_PASSES
    while True:
        if scheduler.position >= len(task_ids):
            scheduler.pass_index, scheduler.position = scheduler.pass_index + 1, 0
        task_id = shuffle_tasks(task_ids, settings.dispatch.seed, scheduler.pass_index)[scheduler.position]
        scheduler.position += 1
        task = state_of(tasks, task_id)
        if not is_free(task, settings):
            continue
        drawn = stateless_random.share("turn lost", settings.dispatch.seed, scheduler.pass_index, task_id)
        turn = Turn(task_id, task, scheduler.pass_index, task.step_limit(limits[task_id]))
        if drawn < weight(turn) or scheduler.pass_index >= last:
            task.skips = 0
            return task_id
        task.skips += 1


def is_free(task: TaskState, settings: Curation) -> bool:
    """Return whether a task may get a group: none is open, and it is not solved."""
    return not task.open and not is_solved(task, settings)


def turn_weight(own: Own, turn: Turn) -> float:
    """Return the probability that a task takes its turn: its signal, or 1 after ``PATIENCE`` - 1 skipped turns."""
    if own.settings.dispatch.choice == "even" or turn.task.skips + 1 >= PATIENCE:
        return 1.0
    return signal_weight(turn.task.finishes)
