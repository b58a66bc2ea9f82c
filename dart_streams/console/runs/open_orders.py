"""Finds a run's open and lost orders from its topics and the env workers' committed offsets. Pure."""

from collections.abc import Sequence

from dart_streams.bus.lag import Lag
from dart_streams.console.runs.run_state import RunState
from topics import rollout_orders
from topics.rollout_orders import RolloutOrder
from topics.values import Purpose


def unfinished_orders(state: RunState, purpose: Purpose | None = None) -> list[RolloutOrder]:
    """Return the orders without a trajectory."""
    orders = (order for order, _ in state.orders.values() if order.order_id not in state.finished)
    return [order for order in orders if purpose in (None, order.purpose)]


def orders_under_way(state: RunState, lags: Sequence[Lag] | None) -> list[str] | None:
    """Return the unfinished orders that env workers had not committed when ``lags`` were read.

    A resumed run, or another worker of the group, gets them again. The result is None if it depends on ``lags`` and
    they are None.
    """
    orders = unfinished_orders(state)
    if lags is None:
        return None if orders else []
    committed = {lag.partition: lag.committed for lag in lags if lag.topic == rollout_orders.TOPIC.name}
    places = {order.order_id: state.orders[order.order_id][1] for order in orders}
    return [order_id for order_id, place in places.items() if place.offset >= committed.get(place.partition, 0)]


def lost_orders(state: RunState, lags: Sequence[Lag] | None) -> list[str] | None:
    """Return the unfinished orders that env workers committed; None as :func:`orders_under_way`."""
    if (under_way := orders_under_way(state, lags)) is None:
        return None
    return [order.order_id for order in unfinished_orders(state) if order.order_id not in under_way]
