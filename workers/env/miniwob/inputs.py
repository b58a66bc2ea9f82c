"""Typed actions as the browser's input events."""

from typing import Any

import msgspec

from dart_streams import actions
from dart_streams.actions import keys

Call = tuple[str, dict[str, Any]]
"""A DevTools method and its parameters."""

MOUSE, KEY, TEXT = "Input.dispatchMouseEvent", "Input.dispatchKeyEvent", "Input.insertText"
SCROLL_PIXELS = 100
"""Of one notch of the wheel, which is also what a scroll without an amount is."""
SCROLLS = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
MODIFIERS = {"alt": 1, "ctrl": 2, "meta": 4, "shift": 8}
NAMED_KEYS = {
    "enter": ("Enter", 13),
    "tab": ("Tab", 9),
    "escape": ("Escape", 27),
    "backspace": ("Backspace", 8),
    "delete": ("Delete", 46),
    "insert": ("Insert", 45),
    "space": (" ", 32),
    "home": ("Home", 36),
    "end": ("End", 35),
    "pageup": ("PageUp", 33),
    "pagedown": ("PageDown", 34),
    "alt": ("Alt", 18),
    "ctrl": ("Control", 17),
    "meta": ("Meta", 91),
    "shift": ("Shift", 16),
    **{name: (f"Arrow{name.capitalize()}", 37 + place) for place, name in enumerate(("left", "up", "right", "down"))},
    **{f"f{number}": (f"F{number}", 111 + number) for number in range(1, 25)},
}
EDITING = {"a": "selectAll", "c": "copy", "v": "paste", "x": "cut", "z": "undo"}


class Held(msgspec.Struct, frozen=True):
    """What the actions before have pressed and not released: mouse buttons and keys, oldest first."""

    buttons: tuple[actions.Button, ...] = ()
    keys: tuple[str, ...] = ()


NOTHING_HELD = Held()


def input_calls(action: actions.Action, held: Held = NOTHING_HELD) -> tuple[list[Call], Held]:
    """Return the events that carry out ``action``, given in page pixels, and what is held after them."""
    modifiers = sum(MODIFIERS[key] for key in held.keys if key in MODIFIERS)
    match action:
        case actions.MouseDown(x, y, button):
            pressed = (*without(held.buttons, button), button)
            return press_at(x, y, button, modifiers), msgspec.structs.replace(held, buttons=pressed)
        case actions.MouseUp(x, y, button):
            left = without(held.buttons, button)
            return release_at(x, y, button, modifiers), msgspec.structs.replace(held, buttons=left)
        case actions.KeyDown(key):
            name = keys.canonical(key)
            pressed_keys = (*without(held.keys, name), name)
            held = msgspec.structs.replace(held, keys=pressed_keys)
            return [key_event("keyDown", name, modifiers | MODIFIERS.get(name, 0))], held
        case actions.KeyUp(key):
            name = keys.canonical(key)
            held = msgspec.structs.replace(held, keys=without(held.keys, name))
            return [key_event("keyUp", name, modifiers & ~MODIFIERS.get(name, 0))], held
        case _:
            return momentary(action, modifiers, held.buttons), held


def release(held: Held) -> list[Call]:
    """Return the events that release all that is held, the mouse's out of the page."""
    buttons = [mouse("mouseReleased", -1, -1, button=button, clickCount=1) for button in reversed(held.buttons)]
    return buttons + [key_event("keyUp", name, 0) for name in reversed(held.keys)]


def without(names: tuple[Any, ...], name: str) -> tuple[Any, ...]:
    """Return the other names."""
    return tuple(other for other in names if other != name)


def momentary(action: actions.Action, modifiers: int, buttons: tuple[actions.Button, ...]) -> list[Call]:
    """Return the events of an action that holds nothing; none for those that have no input."""
    match action:
        case actions.Click(x, y, button, count):
            return click(x, y, button, count, modifiers)
        case actions.Move(x, y):
            return [moved(x, y, modifiers, buttons[-1] if buttons else None)]
        case actions.Drag():
            return drag(action, modifiers)
        case actions.Type(content):
            return typing(content)
        case actions.Hotkey(pressed):
            return hotkey(pressed, modifiers)
        case actions.Scroll(x, y, direction, amount):
            right, down = SCROLLS[direction]
            pixels = SCROLL_PIXELS * (1 if amount is None else amount)
            return [mouse("mouseWheel", x, y, modifiers, deltaX=right * pixels, deltaY=down * pixels)]
    return []


def batches(calls: list[Call]) -> list[list[Call]]:
    """Split events into those that are sent together, without waiting for one another.

    Keys and texts take different ways into a page, so the order of the two is kept by waiting. A wheel or a drag's move
    ends a batch: with the next one before a frame, Chromium would coalesce them.
    """
    split: list[list[Call]] = []
    for call in calls:
        if not split or split[-1][-1][0] != call[0] or waits_for_frame(split[-1][-1]):
            split.append([])
        split[-1].append(call)
    return split


def waits_for_frame(call: Call) -> bool:
    """Whether Chromium answers an event only with the next frame if nothing follows it."""
    kind = call[1].get("type")
    return kind == "mouseWheel" or (kind == "mouseMoved" and "button" in call[1])


def mouse(kind: str, x: int, y: int, modifiers: int = 0, **more: Any) -> Call:
    """Return one mouse event."""
    if modifiers:
        more["modifiers"] = modifiers
    return MOUSE, {"type": kind, "x": x, "y": y, **more}


def moved(x: int, y: int, modifiers: int, button: actions.Button | None = None) -> Call:
    """Return a move of the mouse, with a button that is held or none."""
    return mouse("mouseMoved", x, y, modifiers, **({} if button is None else {"button": button}))


def press_at(x: int, y: int, button: actions.Button, modifiers: int) -> list[Call]:
    """Return a move to (x, y) and a press."""
    return [moved(x, y, modifiers), mouse("mousePressed", x, y, modifiers, button=button, clickCount=1)]


def release_at(x: int, y: int, button: actions.Button, modifiers: int) -> list[Call]:
    """Return a move to (x, y) with the button held, and its release."""
    return [moved(x, y, modifiers, button), mouse("mouseReleased", x, y, modifiers, button=button, clickCount=1)]


def click(x: int, y: int, button: actions.Button, count: int, modifiers: int) -> list[Call]:
    """Return a move to (x, y), and ``count`` times a press and a release, each of which says which of them it is."""
    calls = [moved(x, y, modifiers)]
    for number in range(1, count + 1):
        for kind in ("mousePressed", "mouseReleased"):
            calls.append(mouse(kind, x, y, modifiers, button=button, clickCount=number))
    return calls


def drag(action: actions.Drag, modifiers: int) -> list[Call]:
    """Return a press at the start, moves over the middle to the end, and a release there."""
    middle = (action.x + action.to_x) // 2, (action.y + action.to_y) // 2
    return [
        *press_at(action.x, action.y, action.button, modifiers),
        moved(*middle, modifiers, action.button),
        *release_at(action.to_x, action.to_y, action.button, modifiers),
    ]


def typing(content: str) -> list[Call]:
    """Return the text as one insertion a line, with Enter between lines and after a trailing newline."""
    calls: list[Call] = []
    for number, line in enumerate(content.split("\n")):
        if number:
            calls += press("enter", 0)
        if line:
            calls.append((TEXT, {"text": line}))
    return calls


def hotkey(pressed: tuple[str, ...], modifiers: int) -> list[Call]:
    """Return the last key pressed while all before it are held as modifiers."""
    for key in pressed[:-1]:
        modifiers |= MODIFIERS.get(keys.canonical(key), 0)
    return press(keys.canonical(pressed[-1]).lower(), modifiers)


def press(key: str, modifiers: int) -> list[Call]:
    """Return a key going down and up."""
    return [key_event("keyDown", key, modifiers), key_event("keyUp", key, modifiers)]


def key_event(kind: str, key: str, modifiers: int) -> Call:
    """Return a key, by its one name, going down or up. Ctrl with a letter is also a desktop's editing command.

    A letter's or digit's virtual key code is its ASCII code; other characters have none that holds for each keyboard.
    """
    code = ord(key.upper()) if len(key) == 1 and key.isascii() and key.isalnum() else 0
    name, code = NAMED_KEYS.get(key, (key, code))
    if modifiers & MODIFIERS["shift"] and len(name.upper()) == 1:
        name = name.upper()
    event: dict[str, Any] = {"type": kind, "key": name, "windowsVirtualKeyCode": code, "modifiers": modifiers}
    if kind == "keyDown":
        if key == "enter":
            event["text"] = "\r"
        elif len(name) == 1 and not modifiers & ~MODIFIERS["shift"]:
            event["text"] = name
        if modifiers & MODIFIERS["ctrl"] and key in EDITING:
            event["commands"] = [EDITING[key]]
    return KEY, event
