"""Conversion of typed actions to programs for the machine's pyautogui, from validated values only."""

from dart_desktops.desktop.inputs import PYAUTOGUI_NAMES
from dart_streams import actions
from dart_streams.actions import keys

NOTCHES = 5
"""Notches of a scroll without an amount."""
DRAG_S = 0.5
PREFIX = "import pyautogui\npyautogui.FAILSAFE = False\n"
"""Start of each program; the fail-safe would end it when the pointer is in a corner."""
TYPE_ANY = """
def type_any(text):
    if getattr(pyautogui, "TYPES_ANY_CHARACTER", False):
        return pyautogui.typewrite(text)
    import time
    from Xlib import X, display
    from Xlib.ext import xtest
    server = display.Display()
    first = server.display.info.min_keycode
    rows = server.get_keyboard_mapping(first, server.display.info.max_keycode - first + 1)
    free = [first + number for number, row in enumerate(rows) if not any(row)]
    for start in range(0, len(text), len(free)):
        part = text[start:start + len(free)]
        for code, character in zip(free, part):
            keysym = ord(character) if ord(character) < 256 else 0x1000000 | ord(character)
            server.change_keyboard_mapping(code, [(keysym, keysym)])
        server.sync()
        time.sleep(0.2)
        for code, _ in zip(free, part):
            for kind in (X.KeyPress, X.KeyRelease):
                xtest.fake_input(server, kind, code)
            server.sync()
            time.sleep(0.02)
        time.sleep(0.3)
    for code in free[:len(text)]:
        server.change_keyboard_mapping(code, [(0, 0)])
    server.sync()
"""
"""Maps unused keys to characters without a key, which pyautogui would omit. Clients of the X server read a changed
keyboard with a delay, so it waits before and after."""


def build_program(action: actions.Action) -> str | None:
    """Return the program for ``action``, given in screen pixels, None for an action without input."""
    lines = action_statements(action)
    if not lines:
        return None
    needs = TYPE_ANY if any(line.startswith("type_any(") for line in lines) else ""
    return PREFIX + needs + "\n".join(lines)


def action_statements(action: actions.Action) -> list[str]:
    """Return the calls of an action; none for an action without input, and for an unknown key."""
    match action:
        case actions.Click(x, y, button, count):
            return [f"pyautogui.click({x:d}, {y:d}, clicks={count:d}, button={button!r})"]
        case actions.Move(x, y):
            return [f"pyautogui.moveTo({x:d}, {y:d})"]
        case actions.Drag(x, y, to_x, to_y, button):
            to = f"{to_x:d}, {to_y:d}, duration={DRAG_S}, button={button!r}"
            return [f"pyautogui.moveTo({x:d}, {y:d})", f"pyautogui.dragTo({to})"]
        case actions.MouseDown(x, y, button):
            return [f"pyautogui.moveTo({x:d}, {y:d})", f"pyautogui.mouseDown(button={button!r})"]
        case actions.MouseUp(x, y, button):
            return [f"pyautogui.moveTo({x:d}, {y:d})", f"pyautogui.mouseUp(button={button!r})"]
        case actions.Scroll(x, y, direction, amount):
            return [scroll(x, y, direction, NOTCHES if amount is None else amount)]
        case _:
            return keyboard_statements(action)


def keyboard_statements(action: actions.Action) -> list[str]:
    """Return the calls of a keyboard action."""
    match action:
        case actions.Hotkey((name,)) if len(name) == 1:
            return typing_statements(name)
        case actions.Hotkey(names):
            known = [key for name in names if (key := key_name(name)) is not None]
            return [f"pyautogui.hotkey({', '.join(map(repr, known))})"] if known else []
        case actions.KeyDown(name):
            return [f"pyautogui.keyDown({key!r})" for key in [key_name(name)] if key is not None]
        case actions.KeyUp(name):
            return [f"pyautogui.keyUp({key!r})" for key in [key_name(name)] if key is not None]
        case actions.Type(content):
            return typing_statements(keys.typed_text(content))
    return []


def scroll(x: int, y: int, direction: actions.Direction, notches: int) -> str:
    """Return the call that turns the wheel; up and right are positive."""
    function = "scroll" if direction in {"up", "down"} else "hscroll"
    sign = 1 if direction in {"up", "right"} else -1
    return f"pyautogui.{function}({sign * notches:d}, x={x:d}, y={y:d})"


def typing_statements(text: str) -> list[str]:
    """Return the calls that type a text. On X11 pyautogui types ``<`` as ``>``, and omits other than ASCII."""
    calls: list[str] = []
    part, plain = "", True
    for character in [*text, ""]:
        is_plain = character.isascii() and character != "<"
        if part and (is_plain != plain or not character):
            calls.append(f"pyautogui.typewrite({part!r})" if plain else f"type_any({part!r})")
            part = ""
        part, plain = part + (character if character.isprintable() or character in "\n\t" else ""), is_plain
    return calls


def key_name(name: str) -> str | None:
    """Return pyautogui's name of a key, None for an unknown key."""
    key = keys.canonical_name(name)
    if len(key) == 1:
        return key if key.isascii() and key.isprintable() else None
    return PYAUTOGUI_NAMES.get(key, key) if key in keys.NAMED else None
