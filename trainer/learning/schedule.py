"""Learning rate of supervised training over its steps. Pure."""

import math

FLOOR = 0.1
"""Final share of the learning rate."""


def rate_share(step: int, steps: int, rise: int) -> float:
    """Return the share of the learning rate at ``step``: ``rise`` steps of linear warm-up, half a cosine to FLOOR."""
    risen = min(1.0, (step + 1) / max(1, min(rise, steps)))
    return risen * (FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * step / steps)))
