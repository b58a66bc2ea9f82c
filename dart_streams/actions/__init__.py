"""Typed actions of a policy, the UI-TARS grammar that prints and parses them, and key names. Pure; never eval.

Coordinates are absolute pixels of the policy's image (after :func:`dart_streams.screens.smart_resize`).
"""

from dart_streams.actions.grammar import Unparsable, call, format, parse, quote
from dart_streams.actions.typed import (
    Action,
    Button,
    Call,
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
