"""Rewards of a group and the advantages computed from them.

Each step carries its trajectory's reward, and all steps of the group are the sample. Single steps may be credited on
top: by a step's future return against those of the group's other trajectories at the same step.
"""

import math
from collections.abc import Sequence

from dart_streams.curation.reducer import InvalidEvent
from topics.outcomes import is_success
from topics.trajectories import Trajectory
from topics.transitions import REWARDED

EPSILON = 1e-6


def checked_reward(trajectory: Trajectory) -> float | None:
    """Return a trajectory's reward, None if its outcome carries none; raise InvalidEvent if it is invalid."""
    if trajectory.outcome not in REWARDED:
        return None
    reward = trajectory.reward
    if reward is None or not 0.0 <= reward <= 1.0:
        raise InvalidEvent(f"trajectory {trajectory.trajectory_id}: outcome {trajectory.outcome} with reward {reward}")
    return reward


def shortest_path(rewards: Sequence[float], steps: Sequence[int], alpha: float) -> list[float]:
    """Return a group's rewards, each success lowered by ``alpha`` x (T - T_min) / T for its T steps.

    T_min is the length of the shortest success. Source: the shortest-path reward adjustment of AdaGRPO (MobileRL, arXiv
    2509.18119).
    """
    shortest = min((n for reward, n in zip(rewards, steps, strict=True) if is_success(reward)), default=0)
    return [
        reward * (1.0 - alpha * (n - shortest) / n) if is_success(reward) and n else reward
        for reward, n in zip(rewards, steps, strict=True)
    ]


def reward_statistics(rewards: Sequence[float], steps: Sequence[int]) -> tuple[float, float]:
    """Return mean and unbiased standard deviation of the rewards over all steps of a group.

    ``rewards`` and ``steps`` have one entry a trajectory. With fewer than two steps the deviation is 0.
    """
    count = sum(steps)
    if count == 0:
        return 0.0, 0.0
    mean = sum(reward * n for reward, n in zip(rewards, steps, strict=True)) / count
    if count == 1:
        return mean, 0.0
    squares = sum(n * (reward - mean) ** 2 for reward, n in zip(rewards, steps, strict=True))
    return mean, math.sqrt(squares / (count - 1))


def step_level_advantages(rewards: Sequence[float], steps: Sequence[int]) -> list[float]:
    """Return the advantage of each trajectory's steps: (R - mean) / (sigma + 1e-6) over all steps of the group.

    Long failures thus weigh more than short successes. Source: DART, step-wise GRPO; unbiased as in the authors'
    release.
    """
    mean, std = reward_statistics(rewards, steps)
    return [(reward - mean) / (std + EPSILON) for reward in rewards]


def single_step_advantages(rewards: Sequence[float], steps: Sequence[int], discount: float) -> list[list[float]]:
    """Return, for each trajectory, the advantage of each step.

    It is (return - mean) / (sigma + 1e-6) over the group's trajectories that have this step, 0 for a single one. A
    step's return is its trajectory's reward x ``discount`` to the power of the steps that follow.
    Source: the step-level advantage of UI-S1 (arXiv 2509.11543), which has rewards of single steps. Environments here
    reward only the end, so an early step of a long success returns less than that of a short one.
    """
    returns = [[r * discount ** (n - 1 - step) for step in range(n)] for r, n in zip(rewards, steps, strict=True)]
    advantages: list[list[float]] = [[] for _ in returns]
    for step in range(max(steps, default=0)):
        members = [index for index, n in enumerate(steps) if step < n]
        of_step = step_level_advantages([returns[index][step] for index in members], [1] * len(members))
        for index, advantage in zip(members, of_step, strict=True):
            advantages[index].append(advantage)
    return advantages


def returns_differ(rewards: Sequence[float], steps: Sequence[int], discount: float) -> bool:
    """Return whether trajectories of equal reward have steps with different future returns."""
    return any(rewards) and discount != 1.0 and len(set(steps)) > 1
