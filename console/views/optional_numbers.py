"""Means, medians and rounding of values that may be missing. Pure."""

import math
import statistics
from collections.abc import Sequence


def mean_and_max(values: list[float]) -> dict[str, float | None]:
    """Return the mean and the maximum of values, with four significant digits: a gap of 1e-7 is no 0."""
    return {"mean": round_digits(mean_or_none(values)), "max": round_digits(max(values, default=None))}


def median_or_none(values: Sequence[float]) -> float | None:
    """Return the median; None without values."""
    return statistics.median(values) if values else None


def mean_or_none(values: Sequence[float]) -> float | None:
    """Return the mean; None without values."""
    return math.fsum(values) / len(values) if values else None


def round_digits(value: float | None) -> float | None:
    """Return a value with four significant digits, or None."""
    return None if value is None else float(f"{value:.4g}")


def round_optional(value: float | None, digits: int = 4) -> float | None:
    """Return a rounded value, or None."""
    return None if value is None else round(value, digits)
