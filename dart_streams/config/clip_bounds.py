"""The clip bounds of each objective of ``trainer/objective.py``: the defaults of functions and keys, and what fits.

They differ a thousandfold, for what is clipped differs: a bound of one objective means nothing to another.
"""

import math
from typing import NamedTuple


class ClipBound(NamedTuple):
    """A distance of the clipped ratio from 1: the objective's own, and the least and the most that fit it."""

    default: float
    least: float
    most: float = math.inf


class ClipBounds(NamedTuple):
    """What an objective clips, and how far below (``low``) and above 1 (``high``)."""

    clipped: str
    low: ClipBound
    high: ClipBound


SEQUENCE_MOST = 0.01
"""What a sequence's mean ratio is clipped to is below this, what a token's ratio is clipped to above it.

The papers' own are thirty times below (GSPO) and twenty times above it (DAPO).
"""

CLIP_BOUNDS = {
    "ppo": ClipBounds("each token's ratio", ClipBound(0.2, SEQUENCE_MOST), ClipBound(0.28, SEQUENCE_MOST)),
    "gspo": ClipBounds(
        "the mean ratio of a sequence", ClipBound(3e-4, 0.0, SEQUENCE_MOST), ClipBound(4e-4, 0.0, SEQUENCE_MOST)
    ),
    "cispo": ClipBounds(
        "the weight of a token, from above only (1 is no lower bound)",
        ClipBound(1.0, 1.0, 1.0),
        ClipBound(0.28, SEQUENCE_MOST),
    ),
}
"""By the objectives' names. Sources: DAPO's clip-higher (arXiv 2503.14476), as DART has it; GSPO (arXiv 2507.18071).

CISPO's paper (arXiv 2506.13585) gives no number for its upper bound: it is that of ``ppo``.
"""


def resolve_bounds(objective: str, low: float | None, high: float | None) -> tuple[float, float]:
    """Return the bounds below and above of an objective; None is its own. Raises ValueError if one doesn't fit it."""
    clipped, *own = CLIP_BOUNDS[objective]
    found = []
    for name, given, bound in zip(("clip_low", "clip_high"), (low, high), own, strict=True):
        value = bound.default if given is None else given
        if not bound.least <= value <= bound.most:
            raise ValueError(
                f"{name} = {value:g} does not fit the objective {objective!r}, which clips {clipped}: "
                f"{describe_bound(bound)}. Leave {name} out for the objective's own, {bound.default:g}"
            )
        found.append(value)
    return found[0], found[1]


def describe_bound(bound: ClipBound) -> str:
    """Return which values fit, in words."""
    if math.isinf(bound.most):
        return f"at least {bound.least:g}"
    return f"{bound.least:g}" if bound.least == bound.most else f"{bound.least:g} to {bound.most:g}"
