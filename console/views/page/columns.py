"""JSON values as columns for the exported file: rows by field, counters as differences, each id once, short numbers.

``static/columns.js`` reads them. A marker is an object with one name that begins with ``=``; such names in the data get
one more.
"""

import decimal
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

MIN_ROWS = 3
"""Minimum length of a list that is packed as a column."""
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
EXACT = 2**53
"""JavaScript represents every integer below this."""


class Packer:
    """Packs values that share one table of ids: UUIDs in the order of their first appearance."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def pack(self, value: Any) -> Any:
        """Return a JSON value in packed form."""
        if isinstance(value, dict):
            return {f"={name}" if name.startswith("=") else name: self.pack(one) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return self.column(value)
        if isinstance(value, float) and value.is_integer() and abs(value) < EXACT and repr(value) != "-0.0":
            return int(value)  # the same number in JavaScript, and shorter
        return value

    def column(self, values: Sequence[Any]) -> Any:
        """Return a list as a marker if its entries other than null have a common form, else entry by entry."""
        there = [value for value in values if value is not None]
        packed = self._marker(there) if len(there) >= MIN_ROWS else None
        if packed is None:
            return [self.pack(value) for value in values]
        if len(there) == len(values):
            return packed
        return {"=some": {"there": [int(value is not None) for value in values], "values": packed}}

    def _marker(self, values: Sequence[Any]) -> Any:
        """Return a list without nulls as a marker; None if its entries have no common form."""
        if all(isinstance(value, dict) for value in values):
            names = list(values[0])
            if names and all(list(value) == names for value in values):
                return {"=rows": [[name, self.column([value[name] for value in values])] for name in names]}
        elif all(isinstance(value, list | tuple) for value in values):
            flat = [one for value in values for one in value]
            return {"=lists": {"sizes": self.column([len(value) for value in values]), "values": self.column(flat)}}
        elif all(isinstance(value, str) and UUID.fullmatch(value) for value in values):
            return {"=ids": self._references(values)}
        elif all(type(value) is int and abs(value) < EXACT for value in values):
            steps = [after - before for before, after in zip([0, *values], values, strict=False)]
            if len(json.dumps(steps)) < len(json.dumps(values)):
                return {"=sums": steps}
        return None

    def _references(self, values: Iterable[str]) -> dict[str, Any]:
        """Return ids by their distance from the end of the table; 0 is a new id."""
        begin, back = len(self._ids), []
        for value in values:
            size = len(self._ids)
            place = self._ids.setdefault(value, size)
            back.append(size - place)
        return {"next": begin, "back": back}

    def table(self) -> dict[str, Any]:
        """Return the ids: their first 48 bits (a time in version 7) as differences, and the rest as one text."""
        plain = [identity.replace("-", "") for identity in self._ids]
        heads = [int(identity[:12], 16) for identity in plain]
        return {
            "heads": [after - before for before, after in zip([0, *heads], heads, strict=False)],
            "tails": "".join(identity[12:] for identity in plain),
        }


def format_figure(value: float, digits: int) -> str:
    """Return a text that differs wherever the texts of ``number`` in format.js differ."""
    if not math.isfinite(value):
        return "–"
    if value.is_integer() or abs(value) >= 1000:
        return f"{math.floor(value + 0.5):,}"
    return f"{round_digits(value, digits):g}"


def round_digits(value: float, digits: int) -> float:
    """Return a number with ``digits`` digits; ties round away from 0, as in JavaScript."""
    longer = f"{value:.{digits}e}"
    if longer.partition("e")[0].endswith("5") and float(longer) == value:
        return float(decimal.Context(digits, decimal.ROUND_HALF_UP).plus(decimal.Decimal(value)))
    return float(f"{value:.{digits}g}")


def shorten(value: float, printed: Callable[[float], object], within: float = math.inf) -> float:
    """Return the number with the fewest digits whose ``printed`` text is the same, at most ``within`` away."""
    if not math.isfinite(value):
        return value
    wanted = printed(value)
    for digits in range(1, 17):
        short = float(f"{value:.{digits}g}")
        if abs(short - value) <= within and printed(short) == wanted:
            return short
    return value
