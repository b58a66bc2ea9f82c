"""Conversion of typed actions to the formats of other projects' environments."""

from typing import Any

import msgspec

from dart_streams import actions
from dart_streams.actions import keys
from workers.env.backends.miniwob.inputs import NAMED_KEYS as DOM_KEYS

NOTCH_PIXELS = 100
"""Pixels of a wheel's notch in the browser."""
NOTCHES = 3
NOTHING = "noop(0)"
BEYOND = {f"f{number}" for number in range(13, 25)}
NAMED_KEYS = {name: key for name, (key, _, _) in DOM_KEYS.items() if name not in BEYOND} | {"space": "Space"}
"""Names of keys in Playwright, which has no keys beyond F12."""


def to_fields(action: actions.Action) -> dict[str, Any]:
    """Return an action's fields and its ``type`` in lower case."""
    return {"type": type(action).__name__.lower(), **msgspec.to_builtins(action)}


def to_browsergym(action: actions.Action) -> str:
    """Return the calls of BrowserGym's action set ``coord`` for an action, a line each; a no-op if there is none.

    A third click is left out: the set has a double click at most.
    """
    match action:
        case actions.Click(x, y, button, 2):
            return f"mouse_dblclick({x}, {y}, {button!r})"
        case actions.Click(x, y, button):
            return f"mouse_click({x}, {y}, {button!r})"
        case actions.Move(x, y):
            return f"mouse_move({x}, {y})"
        case actions.MouseDown(x, y, button):
            return f"mouse_down({x}, {y}, {button!r})"
        case actions.MouseUp(x, y, button):
            return f"mouse_up({x}, {y}, {button!r})"
        case actions.Drag(x, y, to_x, to_y, button):
            return f"mouse_down({x}, {y}, {button!r})\nmouse_up({to_x}, {to_y}, {button!r})"
        case actions.Scroll(x, y, direction, amount):
            return f"mouse_move({x}, {y})\n{scroll(direction, amount)}"
        case actions.Type(content):
            return f"keyboard_type({content!r})" if content else NOTHING
        case actions.Finished(content):
            return f"send_msg_to_user({content!r})"
        case _:
            return "noop(1000)" if isinstance(action, actions.Wait) else keyboard_call(action)


def scroll(direction: actions.Direction, amount: int | None) -> str:
    """Return the call that turns the wheel at the pointer's position."""
    pixels = NOTCH_PIXELS * (NOTCHES if amount is None else amount)
    dx, dy = {"up": (0, -pixels), "down": (0, pixels), "left": (-pixels, 0), "right": (pixels, 0)}[direction]
    return f"scroll({dx}, {dy})"


def keyboard_call(action: actions.Action) -> str:
    """Return the call of a keyboard action, a no-op for an unknown key."""
    match action:
        case actions.Hotkey((name,)) if (key := keys.known_name(name)) and not key.isascii():
            return f"keyboard_type({key!r})"
        case actions.Hotkey(names):
            pressed = [key for name in keys.combine_keys(names) if (key := playwright_key(name)) is not None]
            return f"keyboard_press({'+'.join(pressed)!r})" if pressed else NOTHING
        case actions.KeyDown(name):
            return f"keyboard_down({key!r})" if (key := playwright_key(name)) else NOTHING
        case actions.KeyUp(name):
            return f"keyboard_up({key!r})" if (key := playwright_key(name)) else NOTHING
    return NOTHING


def playwright_key(name: str) -> str | None:
    """Return Playwright's name of a key, None for an unknown key."""
    key = keys.known_name(name)
    return key if key is None or (len(key) == 1 and key.isascii()) else NAMED_KEYS.get(key)


def to_androidworld(action: actions.Action) -> dict[str, Any] | None:
    """Return AndroidWorld's JSON action, None if there is none.

    A click of the right button becomes a long press, a drag a swipe of the whole screen. A text is followed by Enter,
    which AndroidWorld always presses.
    """
    match action:
        case actions.Click(x, y, "left", 1):
            return {"action_type": "click", "x": x, "y": y}
        case actions.Click(x, y, "left"):
            return {"action_type": "double_tap", "x": x, "y": y}
        case actions.Click(x, y, "right"):
            return {"action_type": "long_press", "x": x, "y": y}
        case actions.Drag(x, y, to_x, to_y):
            return {"action_type": "swipe", "direction": SWIPES[direction_of(to_x - x, to_y - y)]}
        case actions.Scroll(direction=direction):
            return {"action_type": "scroll", "direction": direction}
        case _:
            return phone_entry(action)


def phone_entry(action: actions.Action) -> dict[str, Any] | None:
    """Return the JSON action of a text, a key or an offered function, None if there is none."""
    match action:
        case actions.Type(content) if text := content.removesuffix("\n"):
            return {"action_type": "input_text", "text": text}
        case actions.Type("\n"):
            return {"action_type": "keyboard_enter"}
        case actions.Call("open_app", {"app_name": name}):
            return {"action_type": "open_app", "app_name": name}
        case actions.Call("set_text", {"text": content}):
            return {"action_type": "input_text", "text": content, "clear_text": True}
        case actions.Hotkey((name,)):
            kind = PHONE_KEYS.get(keys.canonical_name(name))
            return {"action_type": kind} if kind else None
    return None


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
