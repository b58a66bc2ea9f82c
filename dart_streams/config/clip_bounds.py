"""The clip bounds of each objective of ``trainer/objective.py``: defaults and accepted ranges.

They differ a thousandfold, since each objective clips another quantity.
"""

import math
from typing import NamedTuple


class ClipBound(NamedTuple):
    """The distance of the clipped ratio from 1: its default, and its accepted range."""

    default: float
    least: float
    most: float = math.inf


class ClipBounds(NamedTuple):
    """The clipped quantity of an objective, and its bounds below (``low``) and above 1 (``high``)."""

    clipped: str
    low: ClipBound
    high: ClipBound


SEQUENCE_MOST = 0.01
"""The limit between bounds of a sequence's mean ratio (GSPO's is 30 times lower) and of a token's (DAPO's is 20
times higher)."""
LEAST_KL = 1e-3
"""The least bound of a token's divergence (nats), above those of a sequence's mean ratio."""

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
    "dppo_tv": ClipBounds(
        "the shift of a token's probability", ClipBound(0.15, SEQUENCE_MOST, 1.0), ClipBound(0.15, SEQUENCE_MOST, 1.0)
    ),
    "dppo_kl": ClipBounds(
        "a token's binary KL divergence (nats)", ClipBound(0.05, LEAST_KL), ClipBound(0.05, LEAST_KL)
    ),
}
"""Bounds by objective, from DAPO's clip-higher (arXiv 2503.14476), as in DART, and GSPO (arXiv 2507.18071). CISPO's
paper (arXiv 2506.13585) gives no upper bound: it is that of ``ppo``. DPPO's (arXiv 2602.04879) are those of its
authors' example in verl."""


def resolve_bounds(objective: str, low: float | None, high: float | None) -> tuple[float, float]:
    """Return an objective's lower and upper bound; None is its default. Raises ValueError for a bound out of range."""
    clipped, *own = CLIP_BOUNDS[objective]
    bounds = []
    for name, given, bound in zip(("clip_low", "clip_high"), (low, high), own, strict=True):
        value = bound.default if given is None else given
        if not bound.least <= value <= bound.most:
            raise ValueError(
                f"{name} = {value:g} does not fit the objective {objective!r}, which clips {clipped}: "
                f"{describe_bound(bound)}. Leave {name} out for the objective's own, {bound.default:g}"
            )
        bounds.append(value)
    return bounds[0], bounds[1]


def describe_bound(bound: ClipBound) -> str:
    """Return the text of an accepted range."""
    if math.isinf(bound.most):
        return f"at least {bound.least:g}"
    return f"{bound.least:g}" if bound.least == bound.most else f"{bound.least:g} to {bound.most:g}"
