"""What a person does on the shown screen, and the typed action that it means. Pure.

Places are pixels of the screenshot; those beyond its edge mean the edge.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from dart_streams import actions
from dart_streams.actions import keys
from dart_streams.actions.sequence import parse_written

MOST_TEXT = 2048
NOTCH_PIXELS = 100.0
"""Pixels by which browsers scroll for a notch of the wheel."""
MOST_NOTCHES = 100
Pixel = Annotated[float, Meta(ge=-1e5, le=1e5)]
Text = Annotated[str, Meta(min_length=1, max_length=MOST_TEXT)]
ScreenSize = tuple[int, int]


class UnknownGesture(ValueError):
    """A gesture that no action stands for; the message is for the person."""


class Gesture(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    """A gesture, named by its ``kind``."""


class Press(Gesture, frozen=True, kw_only=True, tag="click"):
    """Clicks of a button at a place."""

    x: Pixel
    y: Pixel
    button: actions.Button = "left"
    count: Annotated[int, Meta(ge=1, le=3)] = 1


class Pull(Gesture, frozen=True, kw_only=True, tag="drag"):
    """A button pressed at one place and released at another."""

    x: Pixel
    y: Pixel
    to_x: Pixel
    to_y: Pixel
    button: actions.Button = "left"


class Hover(Gesture, frozen=True, kw_only=True, tag="hover"):
    """The pointer rests at a place."""

    x: Pixel
    y: Pixel


class Wheel(Gesture, frozen=True, kw_only=True, tag="wheel"):
    """The wheel turned at a place, by pixels to the right and down."""

    x: Pixel
    y: Pixel
    right: Pixel = 0.0
    down: Pixel = 0.0


class Typed(Gesture, frozen=True, kw_only=True, tag="text"):
    """A typed text."""

    text: Text


class Chord(Gesture, frozen=True, kw_only=True, tag="keys"):
    """Keys pressed together, by the names that browsers give them."""

    keys: Annotated[list[Annotated[str, Meta(min_length=1, max_length=40)]], Meta(min_length=1, max_length=8)]


class WrittenAction(Gesture, frozen=True, kw_only=True, tag="action"):
    """An action as the person wrote it, such as ``wait()``."""

    action: Text


AnyGesture = Press | Pull | Hover | Wheel | Typed | Chord | WrittenAction


def action_of(gesture: AnyGesture, size: ScreenSize) -> actions.Action:
    """Return the action of a gesture on a screen; raise :class:`UnknownGesture` if there is none."""
    match gesture:
        case Press(x=x, y=y, button=button, count=count):
            return actions.Click(*place_on(size, x, y), button, count)
        case Pull(x=x, y=y, to_x=to_x, to_y=to_y, button=button):
            return actions.Drag(*place_on(size, x, y), *place_on(size, to_x, to_y), button)
        case Hover(x=x, y=y):
            return actions.Move(*place_on(size, x, y))
        case Wheel():
            return scroll_of(gesture, size)
        case Typed(text=text):
            return actions.Type(whole_text(text))
        case Chord(keys=names):
            return actions.Hotkey(chord_of(names))
        case WrittenAction(action=action):
            return read_written(action)


def place_on(size: ScreenSize, x: float, y: float) -> tuple[int, int]:
    """Return the pixel at a place, on the edge if it lies beyond."""
    return min(max(int(x), 0), size[0] - 1), min(max(int(y), 0), size[1] - 1)


def scroll_of(wheel: Wheel, size: ScreenSize) -> actions.Scroll:
    """Return the scroll along the axis that turned farther, by whole notches."""
    if not (wheel.right or wheel.down):
        raise UnknownGesture("the wheel did not turn")
    sideways = abs(wheel.right) > abs(wheel.down)
    turned = wheel.right if sideways else wheel.down
    directions: tuple[actions.Direction, actions.Direction] = ("left", "right") if sideways else ("up", "down")
    notches = min(max(1, round(abs(turned) / NOTCH_PIXELS)), MOST_NOTCHES)
    return actions.Scroll(*place_on(size, wheel.x, wheel.y), directions[turned > 0], notches)


def chord_of(names: list[str]) -> tuple[str, ...]:
    """Return the canonical names of pressed keys; raise :class:`UnknownGesture` for one that no keyboard has."""
    known = [keys.known_name(name) for name in names]
    if None in known:
        raise UnknownGesture(f"no keyboard has the key {names[known.index(None)]!r}")
    return tuple(key for key in known if key is not None)


def whole_text(text: str) -> str:
    """Return a text that records can hold; raise :class:`UnknownGesture` for half of a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UnknownGesture("the text has half of a character") from None
    return text


def read_written(text: str) -> actions.Action:
    """Return a written action; raise :class:`UnknownGesture` if it can't be read."""
    try:
        return parse_written(whole_text(text))
    except actions.Unparsable as error:
        raise UnknownGesture(f"no action: {error}. Write it as click(start_box='(84,120)')") from None
