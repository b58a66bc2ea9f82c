"""Typed actions as the browser's input events."""

from typing import Any

from dart_streams import actions

Call = tuple[str, dict[str, Any]]
"""A DevTools method and its parameters."""

MOUSE, KEY, TEXT = "Input.dispatchMouseEvent", "Input.dispatchKeyEvent", "Input.insertText"
SCROLL_PIXELS = 100
SCROLLS = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
MODIFIERS = {"alt": 1, "ctrl": 2, "control": 2, "meta": 4, "shift": 8}
NAMED_KEYS = {
    "enter": ("Enter", 13),
    "return": ("Enter", 13),
    "tab": ("Tab", 9),
    "esc": ("Escape", 27),
    "escape": ("Escape", 27),
    "backspace": ("Backspace", 8),
    "delete": ("Delete", 46),
    "space": (" ", 32),
    "home": ("Home", 36),
    "end": ("End", 35),
    "pageup": ("PageUp", 33),
    "pagedown": ("PageDown", 34),
    **{name: (f"Arrow{name.capitalize()}", 37 + place) for place, name in enumerate(("left", "up", "right", "down"))},
}
NAMED_KEYS |= {f"arrow{name}": NAMED_KEYS[name] for name in ("left", "up", "right", "down")}
EDITING = {"a": "selectAll", "c": "copy", "v": "paste", "x": "cut", "z": "undo"}


def input_calls(action: actions.Action) -> list[Call]:
    """Return the events that carry out ``action``, given in page pixels; none for those that have no input."""
    match action:
        case actions.Click(x, y):
            return click(x, y, "left", 1)
        case actions.DoubleClick(x, y):
            return click(x, y, "left", 1) + click(x, y, "left", 2)[1:]
        case actions.RightClick(x, y):
            return click(x, y, "right", 1)
        case actions.Drag():
            return drag(action)
        case actions.Type(content):
            return typing(content)
        case actions.Hotkey(keys):
            return hotkey(keys)
        case actions.Scroll(x, y, direction):
            right, down = SCROLLS[direction]
            return [mouse("mouseWheel", x, y, deltaX=right * SCROLL_PIXELS, deltaY=down * SCROLL_PIXELS)]
        case actions.Wait() | actions.Finished() | actions.CallUser():
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


def mouse(kind: str, x: int, y: int, **more: Any) -> Call:
    """Return one mouse event."""
    return MOUSE, {"type": kind, "x": x, "y": y, **more}


def click(x: int, y: int, button: str, count: int) -> list[Call]:
    """Return a move to (x, y), a press and a release; ``count`` is 2 for the second half of a double click."""
    return [
        mouse("mouseMoved", x, y),
        mouse("mousePressed", x, y, button=button, clickCount=count),
        mouse("mouseReleased", x, y, button=button, clickCount=count),
    ]


def drag(action: actions.Drag) -> list[Call]:
    """Return a press at the start, moves over the middle to the end, and a release there."""
    middle = (action.x + action.to_x) // 2, (action.y + action.to_y) // 2
    return [
        mouse("mouseMoved", action.x, action.y),
        mouse("mousePressed", action.x, action.y, button="left", clickCount=1),
        mouse("mouseMoved", *middle, button="left"),
        mouse("mouseMoved", action.to_x, action.to_y, button="left"),
        mouse("mouseReleased", action.to_x, action.to_y, button="left", clickCount=1),
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


def hotkey(keys: tuple[str, ...]) -> list[Call]:
    """Return the last key pressed while all before it are held as modifiers."""
    modifiers = 0
    for key in keys[:-1]:
        modifiers |= MODIFIERS.get(key.lower(), 0)
    return press(keys[-1].lower(), modifiers)


def press(key: str, modifiers: int) -> list[Call]:
    """Return a key going down and up. Ctrl with a letter is also a desktop's editing command."""
    name, code = NAMED_KEYS.get(key, (key, ord(key.upper()) if len(key) == 1 else 0))
    common: dict[str, Any] = {"key": name, "windowsVirtualKeyCode": code, "modifiers": modifiers}
    down = dict(common)
    if key in ("enter", "return"):
        down["text"] = "\r"
    elif len(name) == 1 and not modifiers & ~MODIFIERS["shift"]:
        down["text"] = name
    if modifiers & MODIFIERS["ctrl"] and key in EDITING:
        down["commands"] = [EDITING[key]]
    return [(KEY, {"type": "keyDown", **down}), (KEY, {"type": "keyUp", **common})]
