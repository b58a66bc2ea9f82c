"""Rewards of a group and the advantages computed from them.

Each step carries its trajectory's reward, and all steps of the group are the sample.
"""

import math
from collections.abc import Sequence

import msgspec

from dart_streams.curation.reducer import InvalidEvent
from dart_streams.portable_math import sum_in_order
from topics.outcomes import reconcile_outcome
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


def with_reward(trajectory: Trajectory, reward: float | None) -> Trajectory:
    """Return a trajectory with the reward that counts, and the outcome that agrees with it."""
    if reward == trajectory.reward or trajectory.outcome not in REWARDED:
        return trajectory
    return msgspec.structs.replace(trajectory, reward=reward, outcome=reconcile_outcome(trajectory.outcome, reward))


def reward_statistics(rewards: Sequence[float], steps: Sequence[int]) -> tuple[float, float]:
    """Return mean and unbiased standard deviation of the rewards over all steps of a group.

    ``rewards`` and ``steps`` have one entry a trajectory. With fewer than two steps the deviation is 0.
    """
    count = sum(steps)
    if count == 0:
        return 0.0, 0.0
    mean = sum_in_order(reward * n for reward, n in zip(rewards, steps, strict=True)) / count
    if count == 1:
        return mean, 0.0
    squares = sum_in_order(n * ((reward - mean) * (reward - mean)) for reward, n in zip(rewards, steps, strict=True))
    return mean, math.sqrt(squares / (count - 1))


def step_level_advantages(rewards: Sequence[float], steps: Sequence[int]) -> list[float]:
    """Return the advantage of each trajectory's steps: (R - mean) / (sigma + 1e-6) over all steps of the group.

    Long failures thus weigh more than short successes. Source: DART, step-wise GRPO; unbiased as in the authors'
    release. A trajectory without steps, which is in neither, has 0.
    """
    mean, std = reward_statistics(rewards, steps)
    return [(reward - mean) / (std + EPSILON) if n else 0.0 for reward, n in zip(rewards, steps, strict=True)]
