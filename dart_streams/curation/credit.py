"""Credit of single steps: a step's future return against those of the group's other trajectories at the same step.

Source: the step-level advantage of UI-S1 (arXiv 2509.11543). Its rewards are of single steps; environments here reward
the end only, so an early step of a long success is worth less than that of a short one.
"""

from collections.abc import Sequence

from dart_streams.curation.advantages import step_level


def returns(reward: float, steps: int, discount: float) -> list[float]:
    """Return the future return of each of a trajectory's steps: ``discount`` for each step to its end, x ``reward``."""
    return [reward * discount ** (steps - 1 - step) for step in range(steps)]


def step_advantages(rewards: Sequence[float], steps: Sequence[int], discount: float) -> list[list[float]]:
    """Return, for each trajectory, the advantage of each of its steps.

    It is (return - mean) / (sigma + 1e-6) over the trajectories of the group that have a step of that number, and 0 for
    a trajectory that is the only one.
    """
    futures = [returns(reward, n, discount) for reward, n in zip(rewards, steps, strict=True)]
    credited: list[list[float]] = [[] for _ in futures]
    for step in range(max(steps, default=0)):
        there = [index for index, future in enumerate(futures) if step < len(future)]
        gains = step_level([futures[index][step] for index in there], [1] * len(there))
        for index, gain in zip(there, gains, strict=True):
            credited[index].append(gain)
    return credited


def differs(rewards: Sequence[float], steps: Sequence[int], discount: float) -> bool:
    """Say whether trajectories of one and the same reward have steps whose future returns differ."""
    return any(rewards) and discount != 1.0 and len(set(steps)) > 1
