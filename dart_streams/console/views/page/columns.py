"""JSON values as columns, for a file: rows of one shape by field, counters as differences, each id once; short numbers.

``static/columns.js`` reads it. A marker is an object of one name that begins with ``=``; such names of the data get one
more.
"""

import decimal
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

FEWEST = 3
"""Entries of a list from which on it is written as a column."""
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
EXACT = 2**53
"""From here on a number of JavaScript is not each integer any more."""


class Packer:
    """Packs values that share one table of ids (UUIDs, in the order in which they first come up)."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def pack(self, value: Any) -> Any:
        """Return a value (of JSON) as it is written."""
        if isinstance(value, dict):
            return {f"={name}" if name.startswith("=") else name: self.pack(one) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return self.column(value)
        return integral(value)

    def column(self, values: Sequence[Any]) -> Any:
        """Return a list, in the form that its entries allow; nulls are apart from the others if those have a form."""
        there = [value for value in values if value is not None]
        if len(there) < FEWEST:
            return [self.pack(value) for value in values]
        packed = self._formed(there)
        if packed is None:
            return [self.pack(value) for value in values]
        if len(there) == len(values):
            return packed
        return {"=some": {"there": [int(value is not None) for value in values], "values": packed}}

    def _formed(self, values: Sequence[Any]) -> Any:
        """Return a list without nulls as a marker; None if it has no form."""
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
        """Return ids by their place in the table: 0 is the next new one, n the one n places before that."""
        begin, back = len(self._ids), []
        for value in values:
            size = len(self._ids)
            place = self._ids.setdefault(value, size)
            back.append(size - place)
        return {"next": begin, "back": back}

    def table(self) -> dict[str, Any]:
        """Return the ids: their first 48 bits, which of version 7 is a time, as differences; the rest as one text."""
        plain = [identity.replace("-", "") for identity in self._ids]
        heads = [int(identity[:12], 16) for identity in plain]
        return {
            "heads": [after - before for before, after in zip([0, *heads], heads, strict=False)],
            "tails": "".join(identity[12:] for identity in plain),
        }


def integral(value: Any) -> Any:
    """Return a float that is an integer as one: it is the same number of JavaScript, and shorter."""
    if (
        isinstance(value, float)
        and value.is_integer()
        and abs(value) < EXACT
        and (value or not math.copysign(1, value) < 0)
    ):
        return int(value)
    return value


def figure(value: float, digits: int) -> str:
    """Return a text that differs where the texts that ``number`` of format.js prints differ."""
    if not math.isfinite(value):
        return "–"
    if value.is_integer() or abs(value) >= 1000:
        return f"{math.floor(value + 0.5):,}"
    return f"{rounded(value, digits):g}"


def rounded(value: float, digits: int) -> float:
    """Return a number with ``digits`` digits as JavaScript rounds: a tie, as 1.625 is to three digits, away from 0."""
    longer = f"{value:.{digits}e}"
    if longer.partition("e")[0].endswith("5") and float(longer) == value:
        return float(decimal.Context(digits, decimal.ROUND_HALF_UP).plus(decimal.Decimal(value)))
    return float(f"{value:.{digits}g}")


def shortest(value: float, printed: Callable[[float], object], within: float = math.inf) -> float:
    """Return the number of fewest digits that is ``printed`` the same, and differs by ``within`` at most."""
    if not math.isfinite(value):
        return value
    wanted = printed(value)
    for digits in range(1, 17):
        short = float(f"{value:.{digits}g}")
        if abs(short - value) <= within and printed(short) == wanted:
            return short
    return value
