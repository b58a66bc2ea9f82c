"""Conversion of typed actions to input events of a phone: touches of one finger, keys, and texts. Pure."""

import re
from typing import Any

from dart_streams import actions
from dart_streams.actions import keys

Event = list[Any]
"""Kind (``down``, ``move``, ``up``, ``wait``, ``text``, ``key``, ``home``, ``open``, ``replace``), and its
arguments."""
TAP_MS = 50
LONG_PRESS_MS = 800
"""Longer than Android's long press, 500 ms."""
DOUBLE_TAP_MS = 100
"""Between two taps: shorter than Android's double tap, 300 ms."""
WAIT_MS = 1000
STEPS = 10
"""Moves of a swipe."""
REST_MS = 200
"""Rest before a swipe's end, after which nothing moves on."""
NOTCHES = 3
"""Notches of a scroll without an amount."""
NOTCH_PIXELS = 50
"""Pixels of a swipe for a notch. A swipe may leave the screen."""
MODIFIERS = {"shift": 1, "alt": 2, "ctrl": 4096, "meta": 65536}
"""Bits of Android's meta state."""
NAMED_KEYS = {
    "enter": "ENTER",
    "tab": "TAB",
    "backspace": "DEL",
    "delete": "FORWARD_DEL",
    "insert": "INSERT",
    "escape": "BACK",
    "back": "BACK",
    "end": "MOVE_END",
    "pageup": "PAGE_UP",
    "pagedown": "PAGE_DOWN",
    "left": "DPAD_LEFT",
    "right": "DPAD_RIGHT",
    "up": "DPAD_UP",
    "down": "DPAD_DOWN",
    "menu": "MENU",
}
"""Names of Android's key codes. ``home`` is the phone's button, and ``escape`` goes back, as in AndroidWorld."""


def input_events(action: actions.Action, held: frozenset[str]) -> list[Event]:
    """Return the events of ``action``, given in screen pixels, while modifiers are held.

    A click of the right button is a long press. Its drags, the middle button and moves of the pointer do nothing.
    """
    match action:
        case actions.Click(x, y, "left" | "right" as button, count):
            return make_touch(x, y, TAP_MS if button == "left" else LONG_PRESS_MS) * count
        case actions.Drag(x, y, to_x, to_y, "left"):
            return make_swipe(x, y, to_x, to_y)
        case actions.MouseDown(x, y, "left"):
            return [["down", x, y]]
        case actions.Move(x, y):
            return [["move", x, y]]
        case actions.MouseUp(x, y, "left"):
            return [["move", x, y], ["up", x, y]]
        case actions.Scroll(x, y, direction, amount):
            right, down = {"up": (0, 1), "down": (0, -1), "left": (1, 0), "right": (-1, 0)}[direction]
            pixels = NOTCH_PIXELS * (NOTCHES if amount is None else amount)
            return make_swipe(x, y, x + right * pixels, y + down * pixels)
        case actions.Wait():
            return [["wait", WAIT_MS]]
        case _:
            return entry_events(action, held)


def make_touch(x: int, y: int, milliseconds: int) -> list[Event]:
    """Return a touch of some length."""
    return [["down", x, y], ["wait", milliseconds], ["up", x, y], ["wait", DOUBLE_TAP_MS]]


def make_swipe(x: int, y: int, to_x: int, to_y: int) -> list[Event]:
    """Return a touch that moves, and rests at its end."""
    path = [(x + (to_x - x) * step // STEPS, y + (to_y - y) * step // STEPS) for step in range(1, STEPS + 1)]
    return [["down", x, y], *(["move", *place] for place in path), ["wait", REST_MS], ["up", to_x, to_y]]


def entry_events(action: actions.Action, held: frozenset[str]) -> list[Event]:
    """Return the events of a text, keys or an offered function; an unknown key has none."""
    match action:
        case actions.Type(content):
            return [event for name in content for event in key_events([name], held)] if held else text_events(content)
        case actions.Hotkey(names):
            return key_events(names, held)
        case actions.KeyDown(name) if keys.canonical_name(name) not in MODIFIERS:
            return key_events([name], held)
        case actions.Call("open_app", {"app_name": str(name)}):
            return [["open", name]]
        case actions.Call("set_text", {"text": str(content)}):
            return [["replace", content]]
    return []


def text_events(content: str) -> list[Event]:
    """Return the texts between line ends and tabs, which are keys."""
    parts = re.split("([\n\t])", keys.typed_text(content))
    pressed = {"\n": "KEYCODE_ENTER", "\t": "KEYCODE_TAB"}
    return [["key", pressed[part], 0] if part in pressed else ["text", part] for part in parts if part]


def key_events(names: list[str] | tuple[str, ...], held: frozenset[str]) -> list[Event]:
    """Return the events of keys pressed together."""
    if [keys.canonical_name(name) for name in names] == ["back"]:
        return [["key", "KEYCODE_BACK", 0]]
    pressed = keys.combine_keys(names, held)
    down = held | {key for key in pressed if key in MODIFIERS}
    return [event for key in pressed if (event := key_event(key, down)) is not None]


def key_event(key: str, down: frozenset[str]) -> Event | None:
    """Return the event of a key by its name or character, while modifiers are down; None for a modifier."""
    state = meta_state(down)
    if key == "home":
        return ["home"]
    if key in NAMED_KEYS:
        return ["key", f"KEYCODE_{NAMED_KEYS[key]}", state]
    character = " " if key == "space" else key
    if len(character) > 1:
        return None
    if down.isdisjoint(keys.COMMANDING):
        return ["text", character]
    return ["key", f"KEYCODE_{character.upper()}", state] if character.isascii() and character.isalnum() else None


def meta_state(down: frozenset[str]) -> int:
    """Return Android's meta state of modifiers."""
    return sum(bit for name, bit in MODIFIERS.items() if name in down)


def keys_after(action: actions.Action, held: frozenset[str]) -> frozenset[str]:
    """Return the modifiers that are held after an action."""
    match action:
        case actions.KeyDown(name) if (key := keys.canonical_name(name)) in MODIFIERS:
            return held | {key}
        case actions.KeyUp(name):
            return held - {keys.canonical_name(name)}
    return held
