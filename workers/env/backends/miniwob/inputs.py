"""Conversion of typed actions to the browser's input events; those of the mouse are also a desktop's."""

from collections.abc import Iterable
from typing import Any

import msgspec

from dart_streams import actions
from dart_streams.actions import keys

Call = tuple[str, dict[str, Any]]
"""A DevTools method and its parameters."""
Event = list[Any]
"""Kind (``move``, ``press``, ``release``) and arguments."""

MOUSE, KEY, TEXT = "Input.dispatchMouseEvent", "Input.dispatchKeyEvent", "Input.insertText"
SCROLL_PIXELS = 100
"""Pixels of one notch of the wheel; a scroll without an amount is one notch."""
SCROLLS = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
MODIFIERS = {"alt": 1, "ctrl": 2, "meta": 4, "shift": 8}
NAMED_KEYS = {
    "enter": ("Enter", "Enter", 13),
    "tab": ("Tab", "Tab", 9),
    "escape": ("Escape", "Escape", 27),
    "backspace": ("Backspace", "Backspace", 8),
    "delete": ("Delete", "Delete", 46),
    "insert": ("Insert", "Insert", 45),
    "space": (" ", "Space", 32),
    "home": ("Home", "Home", 36),
    "end": ("End", "End", 35),
    "pageup": ("PageUp", "PageUp", 33),
    "pagedown": ("PageDown", "PageDown", 34),
    "alt": ("Alt", "AltLeft", 18),
    "ctrl": ("Control", "ControlLeft", 17),
    "meta": ("Meta", "MetaLeft", 91),
    "shift": ("Shift", "ShiftLeft", 16),
    "capslock": ("CapsLock", "CapsLock", 20),
    "numlock": ("NumLock", "NumLock", 144),
    "scrolllock": ("ScrollLock", "ScrollLock", 145),
    "printscreen": ("PrintScreen", "PrintScreen", 44),
    "pause": ("Pause", "Pause", 19),
    "menu": ("ContextMenu", "ContextMenu", 93),
    **{
        name: (f"Arrow{name.capitalize()}", f"Arrow{name.capitalize()}", 37 + place)
        for place, name in enumerate(("left", "up", "right", "down"))
    },
    **{f"f{number}": (f"F{number}", f"F{number}", 111 + number) for number in range(1, 25)},
}
"""DOM name, keyboard code and virtual key code of each named key."""
SYMBOL_KEYS = {
    ";": ("Semicolon", 186),
    "=": ("Equal", 187),
    ",": ("Comma", 188),
    "-": ("Minus", 189),
    ".": ("Period", 190),
    "/": ("Slash", 191),
    "`": ("Backquote", 192),
    "[": ("BracketLeft", 219),
    "\\": ("Backslash", 220),
    "]": ("BracketRight", 221),
    "'": ("Quote", 222),
}
"""Code and virtual key code of a US keyboard's keys, by the character without Shift."""
EDITING = {"a": "selectAll", "c": "copy", "v": "paste", "x": "cut", "z": "undo", "Z": "redo", "y": "redo"}


class HeldInputs(msgspec.Struct, frozen=True):
    """Mouse buttons and keys that earlier actions pressed and did not release, oldest first."""

    buttons: tuple[actions.Button, ...] = ()
    keys: tuple[str, ...] = ()


NOTHING_HELD = HeldInputs()


def input_calls(action: actions.Action, held: HeldInputs = NOTHING_HELD) -> tuple[list[Call], HeldInputs]:
    """Return the events of ``action``, given in page pixels, and the held inputs after them."""
    match action:
        case actions.KeyDown(key):
            return key_down(key, held)
        case actions.KeyUp(key):
            return key_up(key, held)
        case actions.Type(content):
            return typing_calls(content, held.keys), held
        case actions.Hotkey(pressed):
            return hotkey_calls(pressed, held.keys), held
        case actions.Scroll(x, y, direction, amount):
            right, down = SCROLLS[direction]
            pixels = SCROLL_PIXELS * (1 if amount is None else amount)
            return [mouse_event("mouseWheel", x, y, held, deltaX=right * pixels, deltaY=down * pixels)], held
        case _:
            return pointer_calls(action, held)


def pointer_calls(action: actions.Action, held: HeldInputs) -> tuple[list[Call], HeldInputs]:
    """Return the events of an action of the mouse; none for an action without input."""
    calls: list[Call] = []
    x = y = presses = 0
    for kind, *arguments in pointer_events(action):
        if kind == "move":
            x, y = arguments
            button = {"button": held.buttons[-1]} if held.buttons else {}
            calls.append(mouse_event("mouseMoved", x, y, held, **button))
            continue
        buttons = remove_names(held.buttons, *arguments)
        if kind == "press":
            presses, buttons = presses + 1, (*buttons, *arguments)
        change = "mousePressed" if kind == "press" else "mouseReleased"
        calls.append(mouse_event(change, x, y, held, button=arguments[0], clickCount=max(presses, 1)))
        held = msgspec.structs.replace(held, buttons=buttons)
    return calls, held


def pointer_events(action: actions.Action) -> list[Event]:
    """Return the input events of ``action``, given in pixels; none for an action that is not of the mouse."""
    match action:
        case actions.Click(x, y, button, count):
            return [["move", x, y], *[[kind, button] for _ in range(count) for kind in ("press", "release")]]
        case actions.Move(x, y):
            return [["move", x, y]]
        case actions.MouseDown(x, y, button):
            return [["move", x, y], ["press", button]]
        case actions.MouseUp(x, y, button):
            return [["move", x, y], ["release", button]]
        case actions.Drag(x, y, to_x, to_y, button):
            moves = [["move", (x + to_x) // 2, (y + to_y) // 2], ["move", to_x, to_y]]
            return [["move", x, y], ["press", button], *moves, ["release", button]]
    return []


def key_down(key: str, held: HeldInputs) -> tuple[list[Call], HeldInputs]:
    """Return the event of a key that goes down, and the held inputs then; an unknown key has no event."""
    names = keys.combine_keys([key], held.keys)
    held = msgspec.structs.replace(held, keys=(*remove_names(held.keys, *names), *names))
    return [key_event("keyDown", name, modifiers_of(held.keys)) for name in names], held


def key_up(key: str, held: HeldInputs) -> tuple[list[Call], HeldInputs]:
    """Return the event of a key that goes up, also if it typed another character, and the held inputs then."""
    names = keys.combine_keys([key], held.keys)
    same = [form(name) for name in names for form in (str, keys.with_shift, keys.without_shift)]
    held = msgspec.structs.replace(held, keys=remove_names(held.keys, *same))
    return [key_event("keyUp", name, modifiers_of(held.keys)) for name in names], held


def release_calls(held: HeldInputs) -> list[Call]:
    """Return the events that release all held inputs, mouse buttons outside the page."""
    buttons = [mouse_event("mouseReleased", -1, -1, button=button, clickCount=1) for button in reversed(held.buttons)]
    return buttons + [key_event("keyUp", name, 0) for name in reversed(held.keys)]


def remove_names(names: tuple[Any, ...], *left_out: str) -> tuple[Any, ...]:
    """Return the names without those left out."""
    return tuple(other for other in names if other not in left_out)


def modifiers_of(held: Iterable[str]) -> int:
    """Return the modifiers among keys as DevTools' bit mask."""
    return sum(MODIFIERS[key] for key in held if key in MODIFIERS)


def split_batches(calls: list[Call]) -> list[list[Call]]:
    """Split events into batches; only batches wait for one another.

    Keys and texts take different ways into a page, so waiting keeps their order. A wheel event or a drag's move ends a
    batch: Chromium would coalesce it with the next one.
    """
    split: list[list[Call]] = []
    for call in calls:
        if not split or split[-1][-1][0] != call[0] or ends_batch(split[-1][-1]):
            split.append([])
        split[-1].append(call)
    return split


def ends_batch(call: Call) -> bool:
    """Return whether an event must have its frame before the next one is sent."""
    return waits_for_frame(call) and (call[1]["type"] == "mouseWheel" or "button" in call[1])


def waits_for_frame(call: Call) -> bool:
    """Return whether Chromium answers an event only with the next frame."""
    return call[1].get("type") in {"mouseWheel", "mouseMoved"}


def mouse_event(kind: str, x: int, y: int, held: HeldInputs = NOTHING_HELD, **more: Any) -> Call:
    """Return one mouse event, with the held modifiers."""
    if modifiers := modifiers_of(held.keys):
        more["modifiers"] = modifiers
    return MOUSE, {"type": kind, "x": x, "y": y, **more}


def typing_calls(content: str, held: tuple[str, ...]) -> list[Call]:
    """Return the key presses of a text, with the held modifiers; each run of characters without a key is inserted.

    A line's end, also of two characters, is Enter, and a tab is the key Tab.
    """
    calls: list[Call] = []
    for character in keys.typed_text(content):
        name = keys.CHARACTER_KEYS.get(character, character)
        if modifiers_of(held) or key_of(name)[1]:
            calls += hotkey_calls((character,), held)
        elif calls and calls[-1][0] == TEXT:
            calls[-1] = (TEXT, {"text": calls[-1][1]["text"] + character})
        else:
            calls.append((TEXT, {"text": character}))
    return calls


def hotkey_calls(pressed: tuple[str, ...], held: tuple[str, ...]) -> list[Call]:
    """Return the events of keys that go down in order, and up in reverse."""
    names = keys.combine_keys(pressed, held)
    after = [(*held, *names[:number]) for number in range(len(names) + 1)]
    down = [key_event("keyDown", name, modifiers_of({*after[number + 1]})) for number, name in enumerate(names)]
    up = [key_event("keyUp", name, modifiers_of({*after[number]})) for number, name in enumerate(names)]
    return down + up[::-1]


def key_event(kind: str, key: str, modifiers: int) -> Call:
    """Return the event of a key, by its name or character, that goes down or up.

    A character that a US keyboard types only with Shift has Shift. Ctrl with a letter is also an editing command.
    """
    name, code, number = key_of(key)
    if key not in NAMED_KEYS and keys.without_shift(key) != key:
        modifiers |= MODIFIERS["shift"]
    event: dict[str, Any] = {"type": kind, "key": name, "windowsVirtualKeyCode": number, "modifiers": modifiers}
    if code:
        event["code"] = code
    if kind == "keyDown":
        if key == "enter":
            event["text"] = "\r"
        elif len(name) == 1 and not modifiers & ~MODIFIERS["shift"]:
            event["text"] = name
        if modifiers & MODIFIERS["ctrl"] and key in EDITING:
            event["commands"] = [EDITING[key]]
    return KEY, event


def key_of(key: str) -> tuple[str, str, int]:
    """Return a key's DOM name, code and virtual key code; the codes are empty if no US keyboard has it."""
    if key in NAMED_KEYS:
        return NAMED_KEYS[key]
    plain = keys.without_shift(key)
    if plain.isascii() and plain.isalpha():
        return key, f"Key{plain.upper()}", ord(plain.upper())
    if plain.isascii() and plain.isdigit():
        return key, f"Digit{plain}", ord(plain)
    return key, *SYMBOL_KEYS.get(plain, ("", 0))
