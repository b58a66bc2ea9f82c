"""The definition of a success, for every process that ends, announces, counts or trains an episode. Pure."""

from topics.transitions import REWARDED
from topics.values import OutcomeKind

SUCCESS = 0.999
"""Rewards of at least this are a success; lower ones are partial credit."""


def is_success(reward: float) -> bool:
    """Return whether a reward in [0, 1] is a success. Partial credit counts only in rates and advantages."""
    return reward >= SUCCESS


def reconcile_outcome(kind: OutcomeKind, reward: float | None) -> OutcomeKind:
    """Return the outcome that agrees with the reward of an episode that ended as ``kind``.

    The reward of a success makes a ``success``, also at the step limit: the task is solved. A ``success`` with a lower
    reward is a ``failure``. A fault stays a fault.
    """
    if reward is None or kind not in REWARDED:
        return kind
    if is_success(reward):
        return "success"
    return "failure" if kind == "success" else kind
