"""The typed actions: all that the action spaces of UI-TARS and OSWorld (``computer_13``) can express.

Each has its place: a dialect in which a click or a drag begins where the pointer is writes down that place.
"""

from typing import Literal

import msgspec

Button = Literal["left", "middle", "right"]
Direction = Literal["up", "down", "left", "right"]


class Click(msgspec.Struct, frozen=True):
    """``count`` clicks (1 to 3) of a mouse button."""

    x: int
    y: int
    button: Button = "left"
    count: int = 1


class Move(msgspec.Struct, frozen=True):
    """Move the pointer; nothing is pressed."""

    x: int
    y: int


class Drag(msgspec.Struct, frozen=True):
    """Press at (x, y), move, and release at (to_x, to_y)."""

    x: int
    y: int
    to_x: int
    to_y: int
    button: Button = "left"


class MouseDown(msgspec.Struct, frozen=True):
    """Press a mouse button and hold it: until :class:`MouseUp`, or the episode's end."""

    x: int
    y: int
    button: Button = "left"


class MouseUp(msgspec.Struct, frozen=True):
    """Release a mouse button at (x, y)."""

    x: int
    y: int
    button: Button = "left"


class Scroll(msgspec.Struct, frozen=True):
    """Turn the wheel at (x, y).

    ``amount`` is in notches of the wheel (1 to 100); without it, as many as the environment takes for one.
    """

    x: int
    y: int
    direction: Direction
    amount: int | None = None


class Hotkey(msgspec.Struct, frozen=True):
    """Keys pressed together, in order, and released; one key is simply pressed."""

    keys: tuple[str, ...]


class KeyDown(msgspec.Struct, frozen=True):
    """Press a key and hold it: until :class:`KeyUp`, or the episode's end."""

    key: str


class KeyUp(msgspec.Struct, frozen=True):
    """Release a key."""

    key: str


class Type(msgspec.Struct, frozen=True):
    r"""Type a text of any characters: ``\n`` presses Enter."""

    content: str


class Wait(msgspec.Struct, frozen=True):
    """Look again a little later."""


class Finished(msgspec.Struct, frozen=True):
    """The policy says that the task is done."""

    content: str = ""


class CallUser(msgspec.Struct, frozen=True):
    """The policy gives up: OSWorld's ``FAIL``."""


Action = (
    Click | Move | Drag | MouseDown | MouseUp | Scroll | Hotkey | KeyDown | KeyUp | Type | Wait | Finished | CallUser
)
