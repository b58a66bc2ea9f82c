"""Conversion of typed actions to the formats of other projects' environments."""

import re
from typing import Any

import msgspec

from dart_streams import actions
from dart_streams.actions import keys
from workers.env.backends.miniwob.inputs import NAMED_KEYS as DOM_KEYS
from workers.env.backends.miniwob.inputs import SCROLLS

Held = frozenset[str]
NOTCH_PIXELS = 100
"""Pixels of a wheel's notch in the browser."""
NOTCHES = 3
NOTHING = "noop(0)"
BEYOND = {f"f{number}" for number in range(13, 25)}
NAMED_KEYS = {name: key for name, (key, _, _) in DOM_KEYS.items() if name not in BEYOND} | {"space": "Space"}
"""Names of keys in Playwright, which has no keys beyond F12."""


def to_fields(action: actions.Action, held: Held = frozenset()) -> dict[str, Any]:
    """Return an action's fields and its ``type`` in lower case, whatever is held."""
    return {"type": type(action).__name__.lower(), **msgspec.to_builtins(action)}


def to_browsergym(action: actions.Action, held: Held = frozenset()) -> str:
    """Return the calls of BrowserGym's action set ``coord`` for an action, a line each; a no-op if there is none.

    Modifiers in ``held`` are down: Playwright does not let Shift change what a character types.

    The server of Gymnasium adds ``mouse_tripleclick`` and ``mouse_wheel``, see :func:`to_coord`.
    """
    match action:
        case actions.Click(x, y, button, count):
            return f"mouse_{('', '', 'dbl', 'triple')[count]}click({x}, {y}, {button!r})"
        case actions.Move(x, y):
            return f"mouse_move({x}, {y})"
        case actions.MouseDown(x, y, button):
            return f"mouse_down({x}, {y}, {button!r})"
        case actions.MouseUp(x, y, button):
            return f"mouse_up({x}, {y}, {button!r})"
        case actions.Drag(x, y, to_x, to_y, button):
            # The move that begins a drag of a page is not over its target.
            return f"mouse_down({x}, {y}, {button!r})\nmouse_move({to_x}, {to_y})\nmouse_up({to_x}, {to_y}, {button!r})"
        case actions.Scroll(x, y, direction, amount):
            pixels = NOTCH_PIXELS * (NOTCHES if amount is None else amount)
            right, down = SCROLLS[direction]
            return f"mouse_wheel({x}, {y}, {right * pixels}, {down * pixels})"
        case actions.Type(content):
            text = "".join(map(keys.with_shift, content)) if "shift" in held else content
            parts = re.split("(\t)", keys.typed_text(text))  # Playwright would insert a tab.
            calls = ["keyboard_press('Tab')" if part == "\t" else f"keyboard_type({part!r})" for part in parts if part]
            return "\n".join(calls) or NOTHING
        case actions.Finished(content):
            return f"send_msg_to_user({content!r})"
        case _:
            return "noop(1000)" if isinstance(action, actions.Wait) else keyboard_call(action, held)


def to_coord(calls: str) -> str:
    """Return calls of the action set alone, for servers that have no others: it has no triple click."""
    if calls.startswith("mouse_wheel("):
        return calls.replace("mouse_wheel", "scroll_at", 1)
    return NOTHING if calls.startswith("mouse_tripleclick(") else calls


def keyboard_call(action: actions.Action, held: Held) -> str:
    """Return the call of a keyboard action while modifiers are held, a no-op for an unknown key."""
    match action:
        case actions.Hotkey((name,)) if (key := keys.known_name(name)) and not key.isascii():
            return f"keyboard_type({key!r})"
        case actions.Hotkey(names):
            pressed = [key for name in keys.combine_keys(names, held) if (key := playwright_key(name)) is not None]
            return f"keyboard_press({'+'.join(pressed)!r})" if pressed else NOTHING
        case actions.KeyDown(name) | actions.KeyUp(name):
            kind = "down" if isinstance(action, actions.KeyDown) else "up"
            pressed = [key for one in keys.combine_keys([name], held) if (key := playwright_key(one)) is not None]
            return f"keyboard_{kind}({pressed[0]!r})" if pressed else NOTHING
    return NOTHING


def playwright_key(name: str) -> str | None:
    """Return Playwright's name of a key, None for an unknown key."""
    key = keys.known_name(name)
    return key if key is None or (len(key) == 1 and key.isascii()) else NAMED_KEYS.get(key)


def to_androidworld(action: actions.Action, held: Held = frozenset()) -> dict[str, Any] | None:
    """Return AndroidWorld's JSON action, None if there is none, as for all but text while a modifier is held.

    A click of the right button becomes a long press, a drag of the left one a swipe of the whole screen. A text is
    followed by Enter, which AndroidWorld always presses.
    """
    match action:
        case actions.Type(content) if held <= {"shift"}:
            return phone_text("".join(map(keys.with_shift, content)) if held else content)
        case actions.Call("open_app", {"app_name": name}):
            return {"action_type": "open_app", "app_name": name}
        case actions.Call("set_text", {"text": content}):
            return {"action_type": "input_text", "text": content, "clear_text": True}
        case _ if held:
            return None
        case actions.Click(x, y, button, count) if (button, count) in TAPS:
            return {"action_type": TAPS[button, count], "x": x, "y": y}
        case actions.Drag(x, y, to_x, to_y, "left"):
            return {"action_type": "swipe", "direction": SWIPES[direction_of(to_x - x, to_y - y)]}
        case actions.Scroll(direction=direction):
            return {"action_type": "scroll", "direction": direction}
        case actions.Hotkey((name,)) if kind := PHONE_KEYS.get(keys.canonical_name(name)):
            return {"action_type": kind}
    return None


def phone_text(content: str) -> dict[str, Any] | None:
    """Return the JSON action of a text, None for an empty one."""
    typed = keys.typed_text(content)
    if text := typed.removesuffix("\n"):
        return {"action_type": "input_text", "text": text}
    return {"action_type": "keyboard_enter"} if typed else None


TAPS = {("left", 1): "click", ("left", 2): "double_tap", ("right", 1): "long_press"}
"""AndroidWorld's action of a click, by its button and count."""
SWIPES: dict[actions.Direction, actions.Direction] = {"up": "up", "down": "down", "left": "right", "right": "left"}
"""AndroidWorld's swipe by the finger's direction. Horizontal ones are named by the other side (its actuation.py)."""
PHONE_KEYS = {"enter": "keyboard_enter", "escape": "navigate_back", "back": "navigate_back", "home": "navigate_home"}
"""AndroidWorld's action of a key."""


def direction_of(dx: int, dy: int) -> actions.Direction:
    """Return the main direction of a move."""
    if abs(dx) > abs(dy):
        return "right" if dx > 0 else "left"
    return "down" if dy > 0 else "up"


DIALECTS = {"browsergym": to_browsergym, "typed": to_fields}
"""Forms of actions by the name of the option ``dialect``."""
