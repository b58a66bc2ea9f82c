"""The declaration of an instrument: its name, with the kind, unit, meaning and attributes that it is exported with."""

from functools import partial
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]


class Instrument(str):
    """An instrument's name; ``meaning`` is its description, and ``attributes`` distinguish its series."""

    kind: Kind
    unit: str
    meaning: str
    attributes: tuple[str, ...]


def of_kind(kind: Kind, name: str, unit: str, meaning: str, *attributes: str) -> Instrument:
    """Return an instrument."""
    made = Instrument(name)
    made.kind, made.unit, made.meaning, made.attributes = kind, unit, meaning, attributes
    return made


counter, gauge, histogram = partial(of_kind, "counter"), partial(of_kind, "gauge"), partial(of_kind, "histogram")

SHORT_BOUNDS = (0, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000)
LONG_BOUNDS = (10_000, 20_000, 30_000, 45_000, 60_000, 90_000, 120_000, 300_000, 600_000, 1_800_000)
BOUNDS: dict[str, tuple[float, ...]] = {
    "ms": SHORT_BOUNDS + LONG_BOUNDS,
    "{version}": (0, 1, 2, 3, 4, 6, 8, 12, 16, 32),
    "{nat}": (1e-6, 1e-5, 1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0),
}
"""Upper bounds of a collector's buckets, by unit. Answers and resets may take minutes, optimizer steps half an hour."""
