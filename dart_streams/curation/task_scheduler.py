"""Whose turn it is: the order in which tasks get their groups.

Tasks come in passes, each pass in another shuffled order. A task that teaches little is passed over by chance, but
never ``PATIENCE`` times in a row, so none starves: of ``n`` tasks, one without an open group gets its next within
``(PATIENCE + 1) x n`` groups. A task that always succeeds teaches nothing: it gets no groups, only a probe (a single
rollout) now and then; a regression then shows in its rate, and it gets groups again.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec

from dart_streams import stateless_random as chance
from dart_streams.config import Curation

FLOOR = 0.1
"""The smallest weight, of a task that nearly always or never succeeds."""
PATIENCE = 4
"""Passes within which a task is chosen once at least, whatever its weight: none starves."""
PROBE_EVERY = 32
"""Of this many groups one is a probe of a solved task: rare enough to cost little, yet forgetting is noticed."""


class TaskState(msgspec.Struct):
    """What dispatch knows of a task: its budget, its last finishes (true for a success), and its groups.

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

    def note(self, success: bool, window: int) -> None:
        """Take a rewarded finish into account; ``solved`` says that a whole window of them were successes."""
        self.failures = 0 if success else self.failures + 1
        self.finishes.append(success)
        del self.finishes[:-window]
        self.solved = len(self.finishes) == window and all(self.finishes)


class TaskScheduler(msgspec.Struct):
    """How far the passes over the tasks have come."""

    turn: int = 0
    position: int = 0


@lru_cache(maxsize=4)
def shuffled(task_ids: tuple[str, ...], seed: int, turn: int) -> tuple[str, ...]:
    """Return the tasks in the order of pass ``turn``: each once, in another order each pass, the same for a seed."""
    return tuple(sorted(task_ids, key=lambda task_id: (chance.number("turn", seed, turn, task_id), task_id)))


def weight(finishes: Sequence[bool]) -> float:
    """Return how much a task can teach at present, in (0, 1]: 4 p (1 - p) of its success rate, smoothed by one each.

    A group teaches by the differences within it, and those are most likely at a rate of one half. A task never tried
    has weight 1.
    """
    rate = (sum(finishes) + 1) / (len(finishes) + 2)
    return max(FLOOR, 4.0 * rate * (1.0 - rate))


def next_task(
    turns: TaskScheduler, lines: dict[str, TaskState], task_ids: tuple[str, ...], number: int, settings: Curation
) -> tuple[str, bool]:
    """Return the task of group ``number``, and whether it only gets a probe.

    A task with an open group waits for the next pass, unless all others are solved or have one too.
    """

    def rest(task_id: str) -> tuple[int, int]:
        return lines[task_id].open, lines[task_id].last_group

    probed = probe(lines, task_ids, number, settings)
    if probed is not None:
        return probed, True
    chosen = walk(turns, lines, task_ids, settings)
    if chosen is None:
        unsolved = [task_id for task_id in task_ids if not is_solved(line_of(lines, task_id), settings)]
        chosen = min(unsolved, key=rest, default=None)
    if chosen is not None:
        return chosen, False
    return min(task_ids, key=rest), True


def probe(lines: dict[str, TaskState], task_ids: tuple[str, ...], number: int, settings: Curation) -> str | None:
    """Return the solved task that was longest without an order, if group ``number`` is one of those for probes."""
    if number % PROBE_EVERY != PROBE_EVERY - 1:
        return None
    idle = [name for name in task_ids if is_solved(line_of(lines, name), settings) and not lines[name].open]
    return min(idle, key=lambda name: lines[name].last_group, default=None)


def line_of(lines: dict[str, TaskState], task_id: str) -> TaskState:
    """Return the line of a task, an empty one if it has none yet."""
    line = lines.get(task_id)
    if line is None:
        line = lines[task_id] = TaskState()
    return line


def is_solved(line: TaskState, settings: Curation) -> bool:
    """Say whether a task gets probes only; never without the dynamic rollout number."""
    return line.solved and settings.budget.dynamic


def walk(
    turns: TaskScheduler, lines: dict[str, TaskState], task_ids: tuple[str, ...], settings: Curation
) -> str | None:
    """Go on in the passes to the next task that has its turn; None if each is solved or has an open group."""
    if not any(is_free(line_of(lines, task_id), settings) for task_id in task_ids):
        return None
    while True:
        if turns.position >= len(task_ids):
            turns.turn, turns.position = turns.turn + 1, 0
        task_id = shuffled(task_ids, settings.dispatch.seed, turns.turn)[turns.position]
        turns.position += 1
        line = line_of(lines, task_id)
        if 0 < settings.mobilerl.rest_after <= line.failures:
            line.failures, line.rests_until = 0, turns.turn + settings.mobilerl.rest_passes
        if turns.turn < line.rests_until or not is_free(line, settings):
            continue
        if not is_passed_over(line, settings, turns.turn, task_id):
            line.skips = 0
            return task_id
        line.skips += 1


def is_free(line: TaskState, settings: Curation) -> bool:
    """Say whether a task may get a group: it has none open, and is not solved."""
    return not line.open and not is_solved(line, settings)


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


def is_passed_over(line: TaskState, settings: Curation, turn: int, task_id: str) -> bool:
    """Say whether a task loses its turn: by chance of its weight, and never ``PATIENCE`` times in a row."""
    dispatch = settings.dispatch
    if dispatch.choice == "even" or line.skips + 1 >= PATIENCE:
        return False
    return chance.share("turn lost", dispatch.seed, turn, task_id) >= weight(line.finishes)
