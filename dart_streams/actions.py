"""The action space: typed actions, and the UI-TARS grammar's parser and printer. Never eval, never exec.

Coordinates are absolute pixels of the image the policy sees (after :func:`dart_streams.screens.smart_resize`).
"""

from typing import Literal

import msgspec


class Click(msgspec.Struct, frozen=True):
    """``click(start_box='(x,y)')``: a left click."""

    x: int
    y: int


class DoubleClick(msgspec.Struct, frozen=True):
    """``left_double(start_box='(x,y)')``."""

    x: int
    y: int


class RightClick(msgspec.Struct, frozen=True):
    """``right_single(start_box='(x,y)')``."""

    x: int
    y: int


class Drag(msgspec.Struct, frozen=True):
    """``drag(start_box='(x,y)', end_box='(x,y)')``."""

    x: int
    y: int
    to_x: int
    to_y: int


class Hotkey(msgspec.Struct, frozen=True):
    """``hotkey(key='ctrl c')``: keys pressed together, in order."""

    keys: tuple[str, ...]


class Type(msgspec.Struct, frozen=True):
    r"""``type(content='text')``: a trailing ``\n`` presses Enter."""

    content: str


class Scroll(msgspec.Struct, frozen=True):
    """``scroll(start_box='(x,y)', direction='down')``."""

    x: int
    y: int
    direction: Literal["up", "down", "left", "right"]


class Wait(msgspec.Struct, frozen=True):
    """``wait()``: look again a little later."""


class Finished(msgspec.Struct, frozen=True):
    """``finished(content='…')``: the policy says that the task is done."""

    content: str = ""


class CallUser(msgspec.Struct, frozen=True):
    """``call_user()``: the policy gives up."""


Action = Click | DoubleClick | RightClick | Drag | Hotkey | Type | Scroll | Wait | Finished | CallUser
