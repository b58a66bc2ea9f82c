"""What a success is: one definition, for every process that ends, announces, counts or trains an episode. Pure."""

from topics.transitions import REWARDED
from topics.values import OutcomeKind

SUCCESS = 0.999
"""A reward from here on is a success; below it, partial credit."""


def is_success(reward: float) -> bool:
    """Say whether a reward in [0, 1] is a success. Partial credit is not, but it counts in rates and advantages."""
    return reward >= SUCCESS


def reconcile_outcome(kind: OutcomeKind, reward: float | None) -> OutcomeKind:
    """Return the outcome of an episode that ended as ``kind`` with ``reward``, so that the two agree.

    A reward of a success makes a ``success`` of it, also where the step limit ended it: the task is solved, whether the
    environment says that it is done or not. A ``success`` with less is a ``failure``. A fault stays a fault.
    """
    if reward is None or kind not in REWARDED:
        return kind
    if is_success(reward):
        return "success"
    return "failure" if kind == "success" else kind
