"""Canonical key names for the spellings of models, browsers and pyautogui.

Key combinations are interpreted here for every backend: a US keyboard with an extra key for each other character.
"""

from collections.abc import Iterable, Sequence

CHARACTER_KEYS = {
    " ": "space",
    "\n": "enter",
    "\r": "enter",
    "\t": "tab",
    "\b": "backspace",
    "\x1b": "escape",
    "\x7f": "delete",
}
SYMBOLS = {
    "!": "exclam",
    '"': "quotedbl",
    "#": "numbersign",
    "$": "dollar",
    "%": "percent",
    "&": "ampersand",
    "'": "apostrophe quote",
    "(": "parenleft",
    ")": "parenright",
    "*": "asterisk multiply kpmultiply numpadmultiply",
    "+": "plus add kpadd numpadadd",
    ",": "comma",
    "-": "minus dash hyphen subtract kpsubtract numpadsubtract",
    ".": "period dot decimal kpdecimal numpaddecimal",
    "/": "slash divide kpdivide numpaddivide",
    ":": "colon",
    ";": "semicolon",
    "<": "less",
    "=": "equal equals",
    ">": "greater",
    "?": "question",
    "@": "at",
    "[": "bracketleft",
    "\\": "backslash",
    "]": "bracketright",
    "^": "asciicircum caret",
    "_": "underscore",
    "`": "grave backquote backtick",
    "{": "braceleft",
    "|": "bar pipe",
    "}": "braceright",
    "~": "asciitilde tilde",
}
"""Character names: X keysyms, DOM codes, pyautogui."""
SPELLINGS = {
    "enter": "return kpenter numpadenter",
    "escape": "esc",
    "backspace": "bksp",
    "delete": "del",
    "insert": "ins",
    "space": "spacebar",
    "ctrl": "control ctrlleft ctrlright controlleft controlright controll controlr ctrll ctrlr",
    "alt": "option altleft altright optionleft optionright altl altr altgr altgraph",
    "shift": "shiftleft shiftright shiftl shiftr",
    "meta": "cmd command super win windows os metaleft metaright metal metar winleft winright superl superr"
    " superleft superright cmdleft cmdright commandleft commandright osleft osright",
    "left": "arrowleft leftarrow",
    "up": "arrowup uparrow",
    "right": "arrowright rightarrow",
    "down": "arrowdown downarrow",
    "pageup": "pgup prior",
    "pagedown": "pgdn pagedn next",
    "capslock": "caps",
    "printscreen": "prtsc prtscr prntscrn print",
    "menu": "apps contextmenu",
}
ALIASES = {
    spelling: name
    for table in (SYMBOLS, SPELLINGS)
    for name, spellings in table.items()
    for spelling in spellings.split()
}
ALIASES |= {f"{kind}{digit}": digit for kind in ("digit", "num", "numpad", "kp") for digit in "0123456789"}
ALIASES |= {f"key{letter}": letter for letter in "abcdefghijklmnopqrstuvwxyz"}
SHIFTED = dict(zip("`1234567890-=[]\\;',./", '~!@#$%^&*()_+{}|:"<>?', strict=True))
UNSHIFTED = {upper: lower for lower, upper in SHIFTED.items()}
MODIFIERS = frozenset({"ctrl", "alt", "shift", "meta"})
COMMANDING = MODIFIERS - {"shift"}
"""Modifiers with which a key types nothing."""
EDITING = frozenset({"enter", "tab", "backspace", "delete", "insert", "space"})
MOVING = frozenset({"home", "end", "pageup", "pagedown", "left", "up", "right", "down"})
OTHERS = frozenset({"escape", "capslock", "numlock", "scrolllock", "printscreen", "pause", "menu"})
NAMED = MODIFIERS | EDITING | MOVING | OTHERS | {f"f{number}" for number in range(1, 25)}
"""Named keys; every other key is the character that it types."""


def canonical_name(key: str) -> str:
    """Return a key's canonical name or character; unknown names in lower case.

    Single characters keep their case. Underscores and hyphens are ignored (``page_up``).
    """
    if len(key) == 1:
        return CHARACTER_KEYS.get(key, key)
    name = key.lower().replace("_", "").replace("-", "")
    return ALIASES.get(name, name if name in NAMED else key.lower())


def known_name(key: str) -> str | None:
    """Return a key's canonical name or character; None if no keyboard has it (a control character, a dead key)."""
    name = canonical_name(key)
    return name if name in NAMED or (len(name) == 1 and name.isprintable()) else None


def typed_text(content: str) -> str:
    """Return a text as it is typed: the end of a line is one character, which is Enter."""
    return content.replace("\r\n", "\n").replace("\r", "\n")


def with_shift(character: str) -> str:
    """Return the character that a key types with Shift."""
    upper = character.upper()
    return SHIFTED.get(character, upper if len(upper) == 1 else character)


def without_shift(character: str) -> str:
    """Return the character that a key types without Shift."""
    lower = character.lower()
    return UNSHIFTED.get(character, lower if len(lower) == 1 else character)


def combine_keys(names: Sequence[str], held: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the keys pressed together, in order, by canonical name or by the character typed.

    Shift and 1 are ``!``; with Ctrl, Alt or Meta, ``A`` means ``a``. ``held`` keys are already down. Unknown keys are
    dropped.
    """
    down, pressed = set(held), []
    for key in (key for name in names if (key := known_name(name)) is not None):
        down.add(key)
        pressed.append(key if key in NAMED else typed_with(key, down))
    return tuple(pressed)


def typed_with(character: str, down: Iterable[str]) -> str:
    """Return the character that a key types while the keys in ``down`` are held."""
    if "shift" in down:
        return with_shift(character)
    return character if COMMANDING.isdisjoint(down) or character in UNSHIFTED else without_shift(character)
