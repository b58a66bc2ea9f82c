"""Recorded problems: screens, and the effect of clicks on their parts. Without browser and torch.

A problem is a state machine. Its states are named by the page's ``task.state()``, or by the parts clicked since the
reset, such as ``"1/2"``. Clicks beside all parts and other actions change nothing.
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
"""Side of a cell in pixels; a point hits what its cell's first pixel hits."""
START = ""
ROOT = Path(__file__).parents[2]
SOURCES = ("benchmarks/learning/recording.py", "benchmarks/learning/screens.py", "workers/env/backends/miniwob")
"""Code that affects recordings."""


class ClickResult(msgspec.Struct, frozen=True):
    """Result of a click on a part: end of the episode, reward in [0, 1], and the state that the page names."""

    done: bool
    reward: float
    state: str | None = None


class RecordedState(msgspec.Struct, frozen=True):
    """A screen, the part under each cell (0: none), the result of each part's click, and the oracle's next click."""

    screen: BlobRef
    parts: bytes
    clicks: dict[int, ClickResult]
    oracle: tuple[int, int] | None = None

    def part_at(self, x: int, y: int) -> int:
        """Return the part under a point of the screen."""
        return self.parts[(y // CELL) * (self.screen.width // CELL) + x // CELL]


class RecordedProblem(msgspec.Struct, frozen=True):
    """A task's instruction, and its states by the parts that lead there."""

    instruction: str
    states: dict[str, RecordedState]


class Landing(msgspec.Struct, frozen=True):
    """Result of an action; ``state`` is None at the end of the recording."""

    state: str | None
    done: bool
    reward: float


class Recording(msgspec.Struct, frozen=True):
    """Problems of a task set by task id, and screens by sha256."""

    problems: dict[str, RecordedProblem]
    images: dict[str, bytes]

    def act(self, task_id: str, state: str, action: Action) -> Landing:
        """Return the result of an action in a state; a double click counts as a click."""
        recorded = self.problems[task_id].states[state]
        if not (isinstance(action, Click) and action.button == "left"):
            return Landing(state, False, 0.0)
        part = recorded.part_at(action.x, action.y)
        if part == 0:
            return Landing(state, False, 0.0)
        if part not in recorded.clicks:
            raise UserError(f"{task_id}: a click on part {part} of state {state!r} is not recorded: record again")
        result = recorded.clicks[part]
        after = path_of(state, part) if result.state is None else result.state
        known = after in self.problems[task_id].states
        return Landing(after if known else None, result.done, result.reward)


def path_of(state: str, part: int) -> str:
    """Return the state that a click on a part leads to."""
    return f"{state}/{part}" if state else str(part)


def file_of(folder: Path, tasks: TaskSet, pages_folder: str = "") -> Path:
    """Return the recording's file, named by the tasks, the recording code, and the pages of one's own."""
    everything = (*tasks.train, *tasks.heldout, *tasks.demonstration)
    state = hashlib.sha256(msgspec.json.encode(everything))
    pages = sorted(Path(pages_folder).glob("*.html")) if pages_folder else []
    for file in [*(file for source in SOURCES for file in files_of(ROOT / source)), *pages]:
        state.update(file.read_bytes())
    return folder / f"screens-{state.hexdigest()[:16]}.msgpack"


def files_of(source: Path) -> Iterable[Path]:
    """Return the source files of a module or package in a fixed order."""
    return [source] if source.is_file() else sorted(path for path in source.iterdir() if path.suffix in (".py", ".js"))


def write(file: Path, recording: Recording) -> None:
    """Write a recording atomically."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_bytes(msgspec.msgpack.encode(recording))
    partial.replace(file)


def read(file: Path) -> Recording:
    """Read a recording; raise :class:`UserError` if it is missing."""
    if not file.is_file():
        raise UserError(f"no recorded screens {file}: run `.venv/streams/bin/dart-streams bench learning`")
    return msgspec.msgpack.decode(file.read_bytes(), type=Recording)
