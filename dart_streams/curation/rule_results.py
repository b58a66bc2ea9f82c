"""Checks of what a recipe's rules return: a curator must not publish what no reader can use."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dart_streams.errors import UserError
from topics.rollout_orders import RolloutOrder
from topics.values import MOST_ROLLOUTS

LARGEST = 1e12
"""Bound of the numbers of events (``topics.values.Real``), infinity excluded."""


class RuleFailed(UserError):
    """A recipe's rule raised an error, or returned a value that is none."""


def check_rollouts(result: Any, difficulty: Any) -> None:
    """Refuse a number of rollouts that an order can't have."""
    require(is_explained(result) and 1 <= result[0] <= MOST_ROLLOUTS, f"(1 to {MOST_ROLLOUTS}, a reason)")


def check_step_limit(result: Any, difficulty: Any, limit: int) -> None:
    """Refuse a step limit above the task's."""
    require(is_explained(result) and 1 <= result[0] <= limit, f"(1 to {limit}, a reason)")


def check_tasks(tasks: Any, group: int, limits: Mapping[str, int], task_ids: Sequence[str]) -> None:
    """Refuse tasks that are not among those given."""
    require(isinstance(tasks, tuple) and set(tasks) <= set(task_ids), "a tuple of the given tasks")


def check_weight(weight: Any, turn: Any) -> None:
    """Refuse a weight that is no probability."""
    require(0.0 <= weight <= 1.0, "a number from 0 to 1")


def check_share(share: Any, of: Any) -> None:
    """Refuse a reward or a success rate outside of 0 to 1."""
    require(share is None or 0.0 <= share <= 1.0, "a number from 0 to 1, or None")


def check_rewards(rewards: Any, members: Sequence[Any], own: Sequence[float]) -> None:
    """Refuse rewards that are not one finite number a member."""
    require(is_numbers(rewards, len(members)), f"{len(members)} finite numbers")


def check_step_advantages(result: Any, members: Sequence[Any], *_: Any) -> None:
    """Refuse step advantages that are not one finite number a step, or none."""
    fits = len(result) == len(members) and all(
        not own or is_numbers(own, member.steps) for own, member in zip(result, members, strict=True)
    )
    require(fits, "a list for each member, empty or with a finite number for each step")


def check_steps(selected: Any, rollouts: Sequence[Any]) -> None:
    """Refuse steps that a rollout does not have, or out of order."""
    fits = len(selected) == len(rollouts) and all(
        own == sorted(set(own)) and all(0 <= step < rollout.steps for step in own)
        for own, rollout in zip(selected, rollouts, strict=True)
    )
    require(fits, "a list of a rollout's steps for each rollout, in order")


def check_orders(orders: Any, trajectory: Any) -> None:
    """Refuse orders for training, which are dispatch's alone."""
    fits = all(isinstance(order, RolloutOrder) and order.purpose != "train" for order in orders)
    require(fits, "orders of another purpose than train")


def check_starts(starts: Any, trajectory: Any) -> None:
    """Refuse start states beyond an exploration's actions; its last action is left to the policy."""
    fits = isinstance(starts, list) and all(type(step) is int and 0 < step < trajectory.steps for step in starts)
    require(fits, "numbers of actions, from 1 and fewer than the exploration has")


def check_scores(scores: Any, request: Any) -> None:
    """Refuse scores that are not one finite number a token, or None for a sample."""
    fits = len(scores) == len(request.samples) and all(
        own is None or is_numbers(own, len(item.answer)) for own, item in zip(scores, request.samples, strict=True)
    )
    require(fits, "None or a finite number for each token, for each sample")


CHECKS: Mapping[str, Callable[..., None]] = {
    "success_rate": check_share,
    "rollouts": check_rollouts,
    "step_limit": check_step_limit,
    "eligible_tasks": check_tasks,
    "task_weight": check_weight,
    "further_orders": check_orders,
    "start_states": check_starts,
    "reward": check_share,
    "shape_rewards": check_rewards,
    "advantages": check_rewards,
    "step_advantages": check_step_advantages,
    "select_steps": check_steps,
    "score": check_scores,
}
"""The check of each rule's result, before it is used; other rules return a truth value, an order, or nothing."""


def require(fits: bool, wanted: str) -> None:
    """Raise ValueError, naming what was wanted, unless a result fits."""
    if not fits:
        raise ValueError(f"must return {wanted}")


def is_explained(result: Any) -> bool:
    """Return whether a result is a whole number and a text."""
    return isinstance(result, tuple) and [type(part) for part in result] == [int, str]


def is_numbers(values: Any, count: int) -> bool:
    """Return whether values are ``count`` numbers that an event can have."""
    return len(values) == count and all(abs(value) <= LARGEST for value in values)
