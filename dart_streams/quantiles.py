"""Quantiles by linear interpolation. Pure."""

import math
from collections.abc import Sequence


def interpolate_quantile(ordered: Sequence[float], share: float) -> float:
    """Return the ``share`` quantile (0 to 1; others are clamped) of an ascending, non-empty sequence.

    Linear interpolation between the two nearest values (type 7 of Hyndman and Fan 1996, as NumPy's default).
    """
    position = min(max(share, 0.0), 1.0) * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
