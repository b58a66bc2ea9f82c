"""A task of a desktop: an application with files, the end of the episode, its reward, and its oracle."""

import base64
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any
from xml.etree import ElementTree

import msgspec

from dart_desktops.desktop.documents import parse_bounded
from dart_streams.actions import Action, Click
from workers.env.environment import EnvironmentFault, Size

LARGE: Size = (1920, 1080)
"""Screen of tasks that do not fit the configured one, as in OSWorld."""
PHONE: Size = (360, 720)
"""The same of a phone's tasks."""
PHONE_QUIET_S = 0.25
"""Time without computing or drawing after which a phone is at rest: its applications have timers of 0.1 s."""

SPACE = "https://accessibility.ubuntu.example.org/ns"
TREE_CHARACTERS = 2**21
PAIR = re.compile(r"\((-?\d{1,9}), (-?\d{1,9})\)")
Content = str | list[str] | bool | None
"""Content of a watched path: a file's bytes in base64, a folder's names, None if it does not exist, or True if it
exists but cannot be read or is too large."""


class SessionOutcome(msgspec.Struct, frozen=True):
    """Exit code of the application (None: it runs), its output, and the contents of the watched paths."""

    exit_code: int | None
    output: str
    state: dict[str, Content]

    def text(self, path: str) -> str | None:
        """Return the text of a watched file, None if there is none."""
        content = self.bytes(path)
        return None if content is None else content.decode(errors="replace")

    def bytes(self, path: str) -> bytes | None:
        """Return the bytes of a watched file, None if there is none."""
        content = self.state.get(path)
        return base64.b64decode(content) if isinstance(content, str) else None


class Element(msgspec.Struct, frozen=True):
    """Accessible part of a window; ``box`` is left, top, width, height in screen pixels."""

    role: str
    name: str
    text: str
    states: list[str]
    box: tuple[int, int, int, int]

    def click(self) -> Click:
        """Return a click on its center."""
        left, top, width, height = self.box
        return Click(left + width // 2, top + height // 2)


Elements = Sequence[Element]
Reward = Callable[[SessionOutcome, Elements], bool]
Next = Callable[[int, Elements], Action | None]
"""Returns the oracle's n-th action (from 0) for the shown elements, None after the last."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One task. A change of a ``watched`` path ends the episode, and so does the application's end.

    ``solved`` gets the accessible elements only with ``reads_elements``: they cost more than a step. Without
    ``accessible`` there are none. ``least`` is the smallest screen on which it can be done.
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
    """Time without computing or drawing after which the application has started."""
    least: Size = (1, 1)
    programs: tuple[str, ...] = ()
    """Programs besides those of every desktop."""
    office: str = ""
    """Application of LibreOffice that the task is about, if any."""
    phone: bool = False
    """Whether it is of a phone: windows fill the screen, the right button is a long press, and a change does not end
    the episode."""

    def screen(self, configured: Size) -> Size:
        """Return its screen size: the configured one if the task fits."""
        fits = configured[0] >= self.least[0] and configured[1] >= self.least[1]
        return configured if fits else PHONE if self.phone else LARGE

    def base(self, configured: Size) -> dict[str, Any]:
        """Return the arguments of the server's ``prepare``."""
        return {"screen": self.screen(configured), "accessible": self.accessible, "frames": not self.phone}

    def session(self, configured: Size, *further: str) -> dict[str, Any]:
        """Return the arguments of the server's ``session``; the command has ``further`` arguments."""
        raw = {path: content.encode() if isinstance(content, str) else content for path, content in self.files.items()}
        files = {path: base64.b64encode(content).decode() for path, content in raw.items()}
        session = {
            "command": (*self.command, *further),
            "files": files,
            "watched": self.watched,
            "quiet_s": self.quiet_s,
        }
        of_phone = {"ends": False, "step_quiet_s": PHONE_QUIET_S} if self.phone else {}
        return {**session, **of_phone, **self.base(configured)}


class MissingElement(LookupError):
    """An element for the oracle is not shown."""


def find(elements: Elements, role: str, name: str | None = None, number: int = 0) -> Element:
    """Return the n-th element of a role and name, in reading order; raise MissingElement with those shown."""
    matching = [element for element in elements if element.role == role and name in {None, element.name}]
    matching.sort(key=lambda element: (element.box[1], element.box[0]))
    if number >= len(matching):
        shown = ", ".join(sorted({f"{element.role} {element.name!r}" for element in elements if element.name}))
        raise MissingElement(f"no {role} {name or number!r} is shown; there are {shown}")
    return matching[number]


async def oracle_actions(
    oracle: Next, elements: Callable[[], Awaitable[Elements]], is_over: Callable[[], Awaitable[bool]], prefix: str = ""
) -> AsyncIterator[Action]:
    """Yield an oracle's actions, each from the shown elements, until the episode is over or there is no further one.

    Raises EnvironmentFault if an element is missing, whose text has the ``prefix``.
    """
    number = 0
    while not await is_over():
        try:
            action = oracle(number, await elements())
        except MissingElement as missing:
            raise EnvironmentFault(f"{prefix}{missing}") from None
        if action is None:
            return
        yield action
        number += 1


def in_turn(*steps: Action | Callable[[Elements], Action]) -> Next:
    """Return an oracle that takes actions in turn, some of them computed from the elements."""

    def oracle(number: int, elements: Elements) -> Action | None:
        step = steps[number] if number < len(steps) else None
        return step if step is None or isinstance(step, Action) else step(elements)

    return oracle


def press(role: str, name: str | None = None, number: int = 0) -> Callable[[Elements], Action]:
    """Return a function that clicks an element."""
    return lambda elements: find(elements, role, name, number).click()


def parse_elements(tree: str) -> list[Element]:
    """Return the shown elements of an accessibility tree; raise EnvironmentFault if it is no XML."""
    try:
        root = parse_bounded(tree, TREE_CHARACTERS)
    except (ElementTree.ParseError, ValueError) as error:
        raise EnvironmentFault(f"the accessibility tree cannot be read: {error}") from None
    shown, space = [], f"{{{SPACE}/state}}"
    for node in root.iter():
        place = PAIR.fullmatch(node.get(f"{{{SPACE}/component}}screencoord", ""))
        size = PAIR.fullmatch(node.get(f"{{{SPACE}/component}}size", ""))
        if place is None or size is None:
            continue
        names = (name.removeprefix(space) for name in node.attrib if name.startswith(space))
        states = sorted(name.replace("_", " ") for name in names)
        box = int(place[1]), int(place[2]), int(size[1]), int(size[2])
        role, name = node.tag.replace("-", " "), node.get("name", "")
        shown.append(Element(role=role, name=name, text=node.text or "", states=states, box=box))
    return shown
