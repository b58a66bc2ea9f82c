"""Credit of single steps: a step's future return against those of the group's other trajectories at the same step.

Source: the step-level advantage of UI-S1 (arXiv 2509.11543). Its rewards are of single steps; environments here reward
the end only, so an early step of a long success has a smaller return than that of a short one.
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
    step_returns = [returns(reward, n, discount) for reward, n in zip(rewards, steps, strict=True)]
    advantages: list[list[float]] = [[] for _ in step_returns]
    for step in range(max(steps, default=0)):
        members = [index for index, n in enumerate(steps) if step < n]
        of_step = step_level([step_returns[index][step] for index in members], [1] * len(members))
        for index, advantage in zip(members, of_step, strict=True):
            advantages[index].append(advantage)
    return advantages


def differs(rewards: Sequence[float], steps: Sequence[int], discount: float) -> bool:
    """Say whether trajectories of one and the same reward have steps whose future returns differ."""
    return any(rewards) and discount != 1.0 and len(set(steps)) > 1
