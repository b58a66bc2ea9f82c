"""Rewards: which trajectories have one, and when one is a success."""

from dart_streams.curation.decisions import Refused
from topics.trajectories import Trajectory
from topics.values import REWARDED

SUCCESS = 0.999
"""A reward from here on is a success; below it, partial credit."""


def is_success(reward: float) -> bool:
    """Say whether a reward in [0, 1] is a success. Partial credit is not, but it counts in rates and advantages."""
    return reward >= SUCCESS


def rewarded(trajectory: Trajectory) -> float | None:
    """Return the reward of a trajectory, None where its outcome carries none.

    Raises
    ------
    Refused
        If the outcome carries a reward and there is none, or it is not in [0, 1].
    """
    if trajectory.outcome not in REWARDED:
        return None
    reward = trajectory.reward
    if reward is None or not 0.0 <= reward <= 1.0:
        raise Refused(f"trajectory {trajectory.trajectory_id}: outcome {trajectory.outcome} with reward {reward}")
    return reward
