"""Arithmetic of decisions: its results are the same bytes in every Python and on every platform.

The sum of floats is compensated since Python 3.12. Powers, exponentials and logarithms are those of the platform's C
library elsewhere.
"""

import math
from collections.abc import Iterable, Sequence
from decimal import Context, Decimal
from functools import lru_cache, reduce
from operator import add

_context = Context(prec=25)


def sum_in_order(values: Iterable[float]) -> float:
    """Return the sum of numbers, rounded after each, as ``sum`` does before Python 3.12; the integer 0 without any."""
    return reduce(add, values, 0)


def exp_of(value: float) -> float:
    """Return e to the power of ``value``, rounded from 25 digits."""
    return float(_context.exp(Decimal(value)))


def log_of(value: float) -> float:
    """Return the natural logarithm of a positive number, rounded from 25 digits."""
    return float(_context.ln(Decimal(value)))


@lru_cache(maxsize=4096)
def power_of(base: float, exponent: int) -> float:
    """Return ``base`` to the power of a natural number, rounded from 25 digits."""
    return float(_context.power(Decimal(base), exponent)) if exponent else 1.0


def interpolate_quantile(ordered: Sequence[float], share: float) -> float:
    """Return the ``share`` quantile (0 to 1; others are clamped) of an ascending, non-empty sequence.

    Linear interpolation between the two nearest values (type 7 of Hyndman and Fan 1996, as NumPy's default).
    """
    position = min(max(share, 0.0), 1.0) * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
