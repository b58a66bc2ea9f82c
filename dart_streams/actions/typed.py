"""Typed actions: the union of the action spaces of UI-TARS and OSWorld's ``computer_13``, and calls of functions.

Every pointer action has explicit coordinates.
"""

from typing import Any, Literal

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
    """Move the pointer."""

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
    """Press a mouse button and hold it until :class:`MouseUp` or the end of the episode."""

    x: int
    y: int
    button: Button = "left"


class MouseUp(msgspec.Struct, frozen=True):
    """Release a mouse button at (x, y)."""

    x: int
    y: int
    button: Button = "left"


class Scroll(msgspec.Struct, frozen=True):
    """Scroll at (x, y) by ``amount`` notches of the wheel (1 to 100), by default the environment's own amount."""

    x: int
    y: int
    direction: Direction
    amount: int | None = None


class Hotkey(msgspec.Struct, frozen=True):
    """Press keys together, in order, and release them."""

    keys: tuple[str, ...]


class KeyDown(msgspec.Struct, frozen=True):
    """Press a key and hold it until :class:`KeyUp` or the end of the episode."""

    key: str


class KeyUp(msgspec.Struct, frozen=True):
    """Release a key."""

    key: str


class Type(msgspec.Struct, frozen=True):
    r"""Type a text; ``\n`` presses Enter."""

    content: str


class Wait(msgspec.Struct, frozen=True):
    """Take another screenshot a little later."""


class Finished(msgspec.Struct, frozen=True):
    """Declare the task done."""

    content: str = ""


class CallUser(msgspec.Struct, frozen=True):
    """Give up: OSWorld's ``FAIL``."""


class Call(msgspec.Struct, frozen=True):
    """Call a function that the environment offers: an API of an application, or a tool of an MCP server.

    ``arguments`` is a JSON object (:mod:`dart_streams.actions.offered`).
    """

    name: str
    arguments: dict[str, Any] = {}


Action = (
    Click
    | Move
    | Drag
    | MouseDown
    | MouseUp
    | Scroll
    | Hotkey
    | KeyDown
    | KeyUp
    | Type
    | Wait
    | Finished
    | CallUser
    | Call
)
