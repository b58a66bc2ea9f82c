"""Keyboard mapping of an X server; unused codes are lent to characters that have none."""

from collections.abc import Callable, Sequence

Keysym = int
Code = tuple[int, bool]
"""A keycode, and whether it needs Shift."""
FIRST_CODE = 8
UNICODE = 0x01000000


def keysym_of(character: str) -> Keysym:
    """Return the keysym of a character (X protocol, appendix A): Latin-1 as is, others with a bit set."""
    value = ord(character)
    if character == "\n":
        return 0xFF0D  # Return
    if character == "\t":
        return 0xFF09  # Tab
    return value if 0x20 <= value <= 0x7E or 0xA0 <= value <= 0xFF else UNICODE | value


class Keymap:
    """The keyboard mapping: a row of keysyms for each keycode, first without Shift, then with it.

    ``change`` maps a keycode to a new keysym. A code keeps its keysym within a text, since the application may still
    have to read it; :meth:`lend` returns how much of a text fits. ``vacate`` is called before a code is lent again.
    """

    def __init__(
        self,
        rows: Sequence[Sequence[Keysym]],
        change: Callable[[int, Keysym], None],
        vacate: Callable[[], None] = lambda: None,
    ) -> None:
        self.codes: dict[Keysym, Code] = {}
        self.free: list[int] = []
        self.lent: dict[int, Keysym] = {}
        self.change = change
        self.vacate = vacate
        for code, row in enumerate(rows, FIRST_CODE):
            if not any(row):
                self.free.append(code)
            for shifted, keysym in enumerate(row[:2]):
                if keysym:
                    self.codes.setdefault(keysym, (code, bool(shifted)))

    def lend(self, text: str) -> int:
        """Lend codes to the characters of ``text`` that have none; return the length of the typable prefix."""
        before: set[Keysym] = set()
        for number, character in enumerate(text):
            keysym = keysym_of(character)
            if not self.lend_code(keysym, before):
                return number
            before.add(keysym)
        return len(text)

    def lend_code(self, keysym: Keysym, needed: "frozenset[Keysym] | set[Keysym]" = frozenset()) -> bool:
        """Lend a code to a keysym that has none, but none of those ``needed``; return whether it has one."""
        if keysym in self.codes:
            return True
        code = self._free_code(needed)
        if code is None:
            return False
        self.lent[code] = keysym
        self.codes[keysym] = (code, False)
        self.change(code, keysym)
        return True

    def _free_code(self, needed: "frozenset[Keysym] | set[Keysym]") -> int | None:
        if self.free:
            return self.free.pop()
        for code, keysym in self.lent.items():
            if keysym not in needed:
                self.vacate()
                del self.lent[code], self.codes[keysym]
                return code
        return None
