"""Step-level group advantages: each step carries its trajectory's reward, and all steps of the group are the sample."""

import math
from collections.abc import Sequence

EPSILON = 1e-6


def statistics(rewards: Sequence[float], steps: Sequence[int]) -> tuple[float, float]:
    """Return mean and unbiased standard deviation of the rewards over all steps of a group.

    ``rewards`` and ``steps`` have one entry a trajectory. A group of fewer than two steps has deviation 0.
    """
    count = sum(steps)
    if count == 0:
        return 0.0, 0.0
    mean = sum(reward * n for reward, n in zip(rewards, steps, strict=True)) / count
    if count == 1:
        return mean, 0.0
    squares = sum(n * (reward - mean) ** 2 for reward, n in zip(rewards, steps, strict=True))
    return mean, math.sqrt(squares / (count - 1))


def step_level(rewards: Sequence[float], steps: Sequence[int]) -> list[float]:
    """Return the advantage of each trajectory's steps: (R - mean) / (sigma + 1e-6), both over all steps of the group.

    Long failures thus weigh more than short successes. Source: DART, step-wise GRPO; the deviation is unbiased as in
    the authors' release.
    """
    mean, std = statistics(rewards, steps)
    return [(reward - mean) / (std + EPSILON) for reward in rewards]
