"""Lost orders: open orders that can never end, and the finish published for them. Pure.

The stages of :data:`STAGES` publish before they commit. An order still open after a flush barrier through all of them
is lost: one of its records is gone, or one derived from them.
"""

import uuid
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from dart_streams.bus.flush_barrier import Stage
from dart_streams.curation import difficulty, dispatch, proposals
from dart_streams.curation.dispatch import DispatchState
from dart_streams.curation.order_tracker import ENDED, OrderKey, format_group_id, format_order_id
from dart_streams.curation.proposals import ProposalsState
from topics import observations, rollout_budgets, rollout_orders, task_difficulty, trajectories
from topics.rollout_orders import RolloutOrder
from topics.trajectories import Trajectory
from topics.values import Purpose

PLAYED = (Stage(rollout_orders.TOPIC, "env"), Stage(observations.TOPIC, "recorder"))
"""From an order to its trajectory."""
STAGES = (
    *PLAYED,
    Stage(trajectories.TOPIC, "curator"),
    Stage(task_difficulty.TOPIC, "curator"),
    Stage(rollout_budgets.TOPIC, "curator"),
)
"""From an order to dispatch's notice of its end."""


class OpenOrder(NamedTuple):
    """An unfinished order."""

    order_id: str
    group_id: str
    group_size: int
    attempt: int
    task_id: str
    purpose: Purpose


def open_orders(state: DispatchState) -> set[OpenOrder]:
    """Return the open orders of dispatch."""
    return {
        OpenOrder(
            format_order_id(OrderKey(number, sample, attempt)),
            format_group_id(number),
            group.size,
            attempt,
            group.task_id,
            "train",
        )
        for number, group in state.groups.items()
        for sample, attempt in enumerate(state.orders.open.get(number, ()))
        if attempt != ENDED
    }


def open_checks(state: ProposalsState) -> set[OpenOrder]:
    """Return the orders of proposals' open checks."""
    checks = [proposals.order_check(proposal).event for proposal in state.open.values()]
    return select_fields(order for order in checks if isinstance(order, RolloutOrder))


FINDERS: dict[str, Callable[[Any], set[OpenOrder]]] = {
    dispatch.NAME: open_orders,
    proposals.NAME: open_checks,
    difficulty.NAME: lambda state: select_fields(state.further.values()),
}
"""What finds the open orders in the state of an agent, by its name."""


def select_fields(orders: Iterable[RolloutOrder]) -> set[OpenOrder]:
    """Return the kept fields of open orders."""
    return {OpenOrder._make(getattr(order, name) for name in OpenOrder._fields) for order in orders}


def finish_of(run: str, lost: OpenOrder, at_ms: int) -> Trajectory:
    """Return the finish of a lost order at ``at_ms`` (epoch ms), with an id derived from the order."""
    return Trajectory(
        trajectory_id=str(uuid.uuid5(uuid.NAMESPACE_OID, f"lost {run} {lost.order_id}")),
        **lost._asdict(),
        outcome="lost",
        reward=None,
        steps=0,
        step_entropies=[],
        version_min=None,
        version_max=None,
        started_ms=at_ms,
        finished_ms=at_ms,
    )
