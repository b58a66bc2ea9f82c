"""Conversion of typed actions to events of the mouse, ``scroll``, ``down``, ``up``, ``text`` and ``rest``."""

from dart_desktops.desktop.guest import pyautogui
from dart_streams import actions
from dart_streams.actions import keys
from workers.env.backends.miniwob.inputs import Event, pointer_events

NOTCHES = 5
"""Notches of a scroll without an amount, as in OSWorld."""
PYAUTOGUI_NAMES = {"meta": "win", "menu": "apps"}
"""Keys with a different name in pyautogui."""
NAMED_KEYS = {name: pyautogui.KEYS[PYAUTOGUI_NAMES.get(name, name)] for name in keys.NAMED}
"""Names of keysyms (X11's keysymdef.h)."""


def input_events(action: actions.Action) -> list[Event]:
    """Return the input events of ``action``, given in screen pixels; none for an action without input."""
    match action:
        case actions.Scroll(x, y, direction, amount):
            return [["move", x, y], ["scroll", direction, NOTCHES if amount is None else amount]]
        case actions.Type(content):
            return [["text", keys.typed_text(content)]] if content else []
        case _:
            return pointer_events(action) or keyboard_events(action)


def touch_events(action: actions.Action) -> list[Event]:
    """Return the same of a touch screen, where a click of the right button is a long press."""
    if isinstance(action, actions.Click) and action.button == "right":
        return [["move", action.x, action.y], ["press", "left"], ["rest"], ["release", "left"]]
    return input_events(action)


def keyboard_events(action: actions.Action) -> list[Event]:
    """Return the events of a keyboard action; an unknown key has none."""
    match action:
        case actions.Hotkey((name,)) if len(keys.canonical_name(name)) == 1:
            return [["text", key] for key in keys.combine_keys([name])]
        case actions.Hotkey(names):
            pressed = [server_name(key, "shift" in map(keys.canonical_name, names)) for key in keys.combine_keys(names)]
            return [["down", key] for key in pressed] + [["up", key] for key in reversed(pressed)]
        case actions.KeyDown(name):
            return [["down", server_name(key)] for key in keys.combine_keys([name])]
        case actions.KeyUp(name):
            return [["up", server_name(key)] for key in keys.combine_keys([name])]
    return []


def server_name(key: str, shift: bool = False) -> str:
    """Return the server's name of a key, given by name or character; while Shift is held, of its key."""
    return NAMED_KEYS.get(key, keys.without_shift(key) if shift and key.isascii() else key)
