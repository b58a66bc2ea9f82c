"""What a task of a desktop is: an application with files, when it is over, its reward, and its oracle."""

import base64
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from dart_streams.actions import Action, Click
from workers.env.environment import Size

LARGE: Size = (1920, 1080)
"""The screen of tasks that cannot be done on the configured one: OSWorld's."""

Content = str | list[str] | None
"""What a watched path has: a file's bytes in base64, a folder's entries, or None if it does not exist."""


class SessionOutcome(msgspec.Struct, frozen=True):
    """What the desktop says at the end: the exit code (None: it still runs), its output, and the watched paths."""

    exit_code: int | None
    output: str
    state: dict[str, Content]

    def text(self, path: str) -> str | None:
        """Return what a watched file contains, None if there is none."""
        content = self.bytes(path)
        return None if content is None else content.decode(errors="replace")

    def bytes(self, path: str) -> bytes | None:
        """Return the bytes of a watched file, None if there is none."""
        content = self.state.get(path)
        return base64.b64decode(content) if isinstance(content, str) else None


class Element(msgspec.Struct, frozen=True):
    """What assistive technology sees of a part of a window; ``box`` is left, top, width, height in screen pixels."""

    role: str
    name: str
    text: str
    states: list[str]
    box: tuple[int, int, int, int]

    def click(self) -> Click:
        """Return a click on its middle."""
        left, top, width, height = self.box
        return Click(left + width // 2, top + height // 2)


Elements = Sequence[Element]
Reward = Callable[[SessionOutcome, Elements], bool]
Next = Callable[[int, Elements], Action | None]
"""The oracle's action number n (from 0), from what is shown before it; None after the last."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One task. ``watched`` paths end the episode once they differ from the start, and so does the application's end.

    ``solved`` has the accessible elements only with ``reads_elements``: to take them costs more than a step. There are
    none at all unless it is ``accessible``. ``least`` is the smallest screen on which it can be done.
    """

    instruction: str
    command: tuple[str, ...]
    solved: Reward
    oracle: Next
    files: dict[str, str | bytes] = msgspec.field(default_factory=dict)
    watched: tuple[str, ...] = ()
    reads_elements: bool = False
    accessible: bool = True
    quiet_s: float = 0.06
    """How long nothing is computed or drawn, at least, until the application has started."""
    least: Size = (1, 1)
    programs: tuple[str, ...] = ()
    """Needed besides those of every desktop."""

    def screen(self, configured: Size) -> Size:
        """Return the size of its screen: as configured, if the task can be done on that."""
        fits = configured[0] >= self.least[0] and configured[1] >= self.least[1]
        return configured if fits else LARGE

    def base(self, configured: Size) -> dict[str, Any]:
        """Return what the server inside is asked for before its application."""
        return {"screen": self.screen(configured), "accessible": self.accessible}

    def session(self, configured: Size) -> dict[str, Any]:
        """Return what the server inside is asked for."""
        raw = {path: content.encode() if isinstance(content, str) else content for path, content in self.files.items()}
        files = {path: base64.b64encode(content).decode() for path, content in raw.items()}
        wanted = {"command": self.command, "files": files, "watched": self.watched, "quiet_s": self.quiet_s}
        return {**wanted, **self.base(configured)}


class MissingElement(LookupError):
    """An element that the oracle needs is not shown."""


def find(elements: Elements, role: str, name: str | None = None, number: int = 0) -> Element:
    """Return the n-th element of a role, as one reads, and of a name if given; raise Missing with what there is."""
    found = [element for element in elements if element.role == role and name in {None, element.name}]
    found.sort(key=lambda element: (element.box[1], element.box[0]))
    if number >= len(found):
        there = ", ".join(sorted({f"{element.role} {element.name!r}" for element in elements if element.name}))
        raise MissingElement(f"no {role} {name or number!r} is shown; there are {there}")
    return found[number]


def in_turn(*chosen: Callable[[Elements], Action]) -> Next:
    """Return an oracle that takes one action after the other."""
    return lambda number, elements: chosen[number](elements) if number < len(chosen) else None


def press(role: str, name: str | None = None, number: int = 0) -> Callable[[Elements], Action]:
    """Return the choice of a click on an element."""
    return lambda elements: find(elements, role, name, number).click()


def act(action: Action) -> Callable[[Elements], Action]:
    """Return the choice of an action that needs no element."""
    return lambda _: action
