"""Rewards: which trajectories have one, when it is a success, and how those of a group are shaped."""

from collections.abc import Sequence

from dart_streams.curation.reducer import InvalidEvent
from topics.trajectories import Trajectory
from topics.transitions import REWARDED

SUCCESS = 0.999
"""A reward from here on is a success; below it, partial credit."""


def is_success(reward: float) -> bool:
    """Say whether a reward in [0, 1] is a success. Partial credit is not, but it counts in rates and advantages."""
    return reward >= SUCCESS


def rewarded(trajectory: Trajectory) -> float | None:
    """Return the reward of a trajectory, None where its outcome carries none.

    Raises
    ------
    InvalidEvent
        If the outcome carries a reward and there is none, or it is not in [0, 1].
    """
    if trajectory.outcome not in REWARDED:
        return None
    reward = trajectory.reward
    if reward is None or not 0.0 <= reward <= 1.0:
        raise InvalidEvent(f"trajectory {trajectory.trajectory_id}: outcome {trajectory.outcome} with reward {reward}")
    return reward


def shortest_path(rewards: Sequence[float], steps: Sequence[int], alpha: float) -> list[float]:
    """Return a group's rewards, those of successes lowered by ``alpha`` x (T - T_min) / T for their T steps.

    T_min is the length of the group's shortest success, which keeps its reward whole; failures keep theirs. With
    ``alpha`` 0 nothing changes. Source: the shortest-path reward adjustment of AdaGRPO (MobileRL, arXiv 2509.18119).
    """
    shortest = min((n for reward, n in zip(rewards, steps, strict=True) if is_success(reward)), default=0)
    return [
        reward * (1.0 - alpha * (n - shortest) / n) if is_success(reward) and n else reward
        for reward, n in zip(rewards, steps, strict=True)
    ]
