"""Recorded problems: their screens, and what a click on each part of them does. Without browser and torch.

A problem is a small state machine. A state is named by the parts clicked since the reset, for instance ``"1/2"``; a
click beside all parts leaves it, and so do actions other than clicks, which the pages of the demonstration ignore.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from dart_streams.actions import Action, Click
from dart_streams.config.tasks import TaskSet
from dart_streams.errors import UserError
from topics.values import BlobRef

CELL = 2
"""Pixels of a side of a cell: a point hits what its cell's first pixel hits."""
START = ""
ROOT = Path(__file__).parents[2]
SOURCES = ("benchmarks/learning/recording.py", "benchmarks/learning/screens.py", "workers/env/backends/miniwob")
"""Code that decides what is recorded."""


class ClickResult(msgspec.Struct, frozen=True):
    """What a click on a part does: whether it ends the episode, and the page's reward then, in [0, 1]."""

    done: bool
    reward: float


class RecordedState(msgspec.Struct, frozen=True):
    """A screen; the part under each cell (0: none), row by row; what a click on each part does.

    ``oracle`` is the point, in pixels of the screen, that a demonstration clicks next.
    """

    screen: BlobRef
    parts: bytes
    clicks: dict[int, ClickResult]
    oracle: tuple[int, int] | None = None

    def part_at(self, x: int, y: int) -> int:
        """Return the part under a point of the screen."""
        return self.parts[(y // CELL) * (self.screen.width // CELL) + x // CELL]


class RecordedProblem(msgspec.Struct, frozen=True):
    """A task's problem: its instruction, and its states by the parts that lead there."""

    instruction: str
    states: dict[str, RecordedState]


class Landing(msgspec.Struct, frozen=True):
    """Where an action led to; ``state`` is None where no further state was recorded: the episode is at its end."""

    state: str | None
    done: bool
    reward: float


class Recording(msgspec.Struct, frozen=True):
    """The problems of a task set by task id, and their screens by sha256."""

    problems: dict[str, RecordedProblem]
    images: dict[str, bytes]

    def act(self, task_id: str, state: str, action: Action) -> Landing:
        """Return what an action, in pixels of the screen, does in a state; a double click counts as a click."""
        recorded = self.problems[task_id].states[state]
        if not (isinstance(action, Click) and action.button == "left"):
            return Landing(state, False, 0.0)
        part = recorded.part_at(action.x, action.y)
        if part == 0:
            return Landing(state, False, 0.0)
        if part not in recorded.clicks:
            raise UserError(f"{task_id}: a click on part {part} of state {state!r} was not recorded: record it again")
        result, after = recorded.clicks[part], path_of(state, part)
        known = after in self.problems[task_id].states
        return Landing(after if known else None, result.done, result.reward)


def path_of(state: str, part: int) -> str:
    """Return the name of the state that a click on a part leads to."""
    return f"{state}/{part}" if state else str(part)


def parts_of(state: str) -> list[int]:
    """Return the parts whose clicks lead to a state, in order."""
    return [int(part) for part in state.split("/")] if state else []


def file_of(folder: Path, tasks: TaskSet) -> Path:
    """Return the file of a task set's recording, named by its tasks and by the code that records."""
    everything = (*tasks.train, *tasks.heldout, *tasks.demonstration)
    state = hashlib.sha256(msgspec.json.encode(everything))
    for source in SOURCES:
        for file in files_of(ROOT / source):
            state.update(file.read_bytes())
    return folder / f"screens-{state.hexdigest()[:16]}.msgpack"


def files_of(source: Path) -> Iterable[Path]:
    """Return the source files of a module or package, in a fixed order."""
    return [source] if source.is_file() else sorted(path for path in source.iterdir() if path.suffix in (".py", ".js"))


def write(file: Path, recording: Recording) -> None:
    """Write a recording, complete or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_bytes(msgspec.msgpack.encode(recording))
    partial.replace(file)


def read(file: Path) -> Recording:
    """Read a recording; raise :class:`UserError` if it is not there."""
    if not file.is_file():
        raise UserError(f"no recorded screens {file}: `.venv/streams/bin/dart-streams bench learning` makes them")
    return msgspec.msgpack.decode(file.read_bytes(), type=Recording)
