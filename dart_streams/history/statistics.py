"""Intervals for success rates. Pure."""

import math
from collections.abc import Sequence

import msgspec

from dart_streams import quantiles

Z_95 = 1.959963984540054


class Rate(msgspec.Struct, frozen=True):
    """``successes`` of ``trials`` (rewards may be fractional) with the 95 % Wilson interval [low, high]."""

    successes: float
    trials: int
    rate: float
    low: float
    high: float


def rate(successes: float, trials: int) -> Rate:
    """Return a rate with its Wilson score interval (Wilson 1927); without trials it is 0 in [0, 1]."""
    if trials == 0:
        return Rate(successes, 0, 0.0, 0.0, 1.0)
    share = successes / trials
    centre = share + Z_95**2 / (2 * trials)
    spread = Z_95 * math.sqrt(share * (1 - share) / trials + Z_95**2 / (4 * trials**2))
    scale = 1 + Z_95**2 / trials
    low = 0.0 if successes == 0 else max(0.0, (centre - spread) / scale)
    high = 1.0 if successes == trials else min(1.0, (centre + spread) / scale)
    return Rate(successes, trials, share, low, high)


def difference(before: Rate, after: Rate) -> tuple[float, float, float]:
    """Return ``after`` less ``before`` with its 95 % interval (Newcombe 1998, method 10, for unpaired samples)."""
    change = after.rate - before.rate
    low = change - math.hypot(after.rate - after.low, before.high - before.rate)
    high = change + math.hypot(after.high - after.rate, before.rate - before.low)
    return change, max(-1.0, low), min(1.0, high)


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the linearly interpolated quantile, None of nothing."""
    return quantiles.quantile(sorted(values), share) if values else None


def mean(values: Sequence[float]) -> float | None:
    """Return the mean, None of nothing."""
    return math.fsum(values) / len(values) if values else None
