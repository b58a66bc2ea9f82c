"""What a policy can do: typed actions, the UI-TARS grammar that writes and reads them, and the names of keys.

Pure, and never eval. Coordinates are absolute pixels of the image that the policy sees (after
:func:`dart_streams.screens.smart_resize`).
"""

from dart_streams.actions.grammar import Unparsable, call, format, parse, quote
from dart_streams.actions.typed import (
    Action,
    Button,
    CallUser,
    Click,
    Direction,
    Drag,
    Finished,
    Hotkey,
    KeyDown,
    KeyUp,
    MouseDown,
    MouseUp,
    Move,
    Scroll,
    Type,
    Wait,
)

__all__ = [
    "Action",
    "Button",
    "CallUser",
    "Click",
    "Direction",
    "Drag",
    "Finished",
    "Hotkey",
    "KeyDown",
    "KeyUp",
    "MouseDown",
    "MouseUp",
    "Move",
    "Scroll",
    "Type",
    "Unparsable",
    "Wait",
    "call",
    "format",
    "parse",
    "quote",
]
