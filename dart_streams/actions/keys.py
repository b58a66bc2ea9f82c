"""Names of keys: models, browsers and pyautogui each spell them in their own way; here each has one."""

ALIASES = {
    "return": "enter",
    "esc": "escape",
    "del": "delete",
    "ins": "insert",
    "control": "ctrl",
    "ctrlleft": "ctrl",
    "ctrlright": "ctrl",
    "option": "alt",
    "altleft": "alt",
    "altright": "alt",
    "shiftleft": "shift",
    "shiftright": "shift",
    "cmd": "meta",
    "command": "meta",
    "super": "meta",
    "win": "meta",
    "windows": "meta",
    "arrowleft": "left",
    "arrowup": "up",
    "arrowright": "right",
    "arrowdown": "down",
    "pgup": "pageup",
    "prior": "pageup",
    "pgdn": "pagedown",
    "pagedn": "pagedown",
    "next": "pagedown",
    "spacebar": "space",
    "prtsc": "printscreen",
    "prtscr": "printscreen",
    "prntscrn": "printscreen",
    "print": "printscreen",
    "apps": "menu",
    "contextmenu": "menu",
    "plus": "+",
    "minus": "-",
}
MODIFIERS = frozenset({"ctrl", "alt", "shift", "meta"})
EDITING = frozenset({"enter", "tab", "backspace", "delete", "insert", "space"})
MOVING = frozenset({"home", "end", "pageup", "pagedown", "left", "up", "right", "down"})
OTHERS = frozenset({"escape", "capslock", "numlock", "scrolllock", "printscreen", "pause", "menu"})
NAMED = MODIFIERS | EDITING | MOVING | OTHERS | {f"f{number}" for number in range(1, 25)}
"""Keys with a name; every other key is the character that it types."""


def canonical(key: str) -> str:
    """Return a key's one name, or its character; what is neither comes back in lower case.

    A single character keeps its case. Underscores and hyphens within a name do not count (``page_up``).
    """
    if len(key) == 1:
        return key
    name = key.lower().replace("_", "").replace("-", "")
    return ALIASES.get(name, name if name in NAMED else key.lower())
