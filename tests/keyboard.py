"""Texts that keyboard actions type, for the tests of each backend."""

from collections.abc import Sequence

from dart_streams.actions import Action, Hotkey, KeyDown, KeyUp, Type

SHIFTED = list(zip("`1234567890-=[]\\;',./", '~!@#$%^&*()_+{}|:"<>?', strict=True))


def hotkeys(*combinations: str) -> list[Action]:
    """Return hotkeys, each written with spaces between its keys."""
    return [Hotkey(tuple(combination.split(" "))) for combination in combinations]


def held(key: str, *actions: Action) -> list[Action]:
    """Return actions while a key is held."""
    return [KeyDown(key), *actions, KeyUp(key)]


TYPED: list[tuple[Sequence[Action], str]] = [
    (hotkeys("a", "A", "shift a", "shift A"), "aAAA"),
    (hotkeys(*(lower for lower, _ in SHIFTED)), "".join(lower for lower, _ in SHIFTED)),
    (hotkeys(*(upper for _, upper in SHIFTED)), "".join(upper for _, upper in SHIFTED)),
    (hotkeys(*(f"shift {lower}" for lower, _ in SHIFTED)), "".join(upper for _, upper in SHIFTED)),
    (hotkeys(*(f"Shift_R {upper}" for _, upper in SHIFTED)), "".join(upper for _, upper in SHIFTED)),
    (hotkeys("plus", "shift equal", "underscore", "shift minus", "Digit4", "KeyQ", "KP_5", "bracketleft"), "++__4q5["),
    (hotkeys("é", "ß", "€", "中", "😀", "´", "shift é", "É"), "éß€中😀´ÉÉ"),
    (hotkeys("dead_acute", "fn", "no such key", "\0", "\x1d"), ""),
    (hotkeys("a b", "shift a b", "x", "space"), "abABx "),
    ([*held("A"), *held("!"), *held("é"), *held("space")], "A!é "),
    (held("shift", *hotkeys("a", "1", "A"), Type("a1;")), "A!AA!:"),
    (held("ShiftLeft", KeyDown("2"), KeyUp("2"), *held("b")), "@B"),
]
"""Actions in an empty line, and the text that they type."""
EDITED: list[tuple[Sequence[Action], str]] = [
    ([Type("ab"), *hotkeys("ArrowLeft"), Type("c"), *hotkeys("left", "Left", "del"), Type("d")], "dcb"),
    ([Type("ab"), *hotkeys("Home"), Type("1"), *hotkeys("end", "Backspace", "back_space"), Type("2")], "12"),
    ([Type("old"), *hotkeys("shift Home"), Type("new")], "new"),
    ([Type("old"), *held("Shift", *hotkeys("home")), Type("new")], "new"),
    ([Type("a b"), *hotkeys("Control_L ArrowLeft"), Type("c ")], "a c b"),
    ([Type("ab"), *held("ctrlright", *hotkeys("Left")), Type("c")], "cab"),
]
"""Actions in an empty line, some of which move the cursor or select, and the text of the line then."""
