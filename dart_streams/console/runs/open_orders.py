"""Which orders of a run are open or lost: its topics against what the env workers have committed. Pure."""

from collections.abc import Sequence

from dart_streams.bus.lag import Lag
from dart_streams.console.runs.run_state import RunState
from topics import rollout_orders
from topics.rollout_orders import RolloutOrder
from topics.values import Purpose


def unfinished_orders(state: RunState, purpose: Purpose | None = None) -> list[RolloutOrder]:
    """Return the orders that no trajectory has finished yet."""
    orders = (order for order, _ in state.orders.values() if order.order_id not in state.finished)
    return [order for order in orders if purpose in (None, order.purpose)]


def orders_under_way(state: RunState, lags: Sequence[Lag] | None) -> list[str] | None:
    """Return the orders under way when ``lags`` were read: not finished, and not committed by the env workers.

    A resumed run, or another worker of the group, gets them again. None if ``lags`` are not known (None) and it
    depends on them: some orders are not finished.
    """
    orders = unfinished_orders(state)
    if lags is None:
        return None if orders else []
    committed = {lag.partition: lag.committed for lag in lags if lag.topic == rollout_orders.TOPIC.name}
    places = {order.order_id: state.orders[order.order_id][1] for order in orders}
    return [identity for identity, place in places.items() if place.offset >= committed.get(place.partition, 0)]


def lost_orders(state: RunState, lags: Sequence[Lag] | None) -> list[str] | None:
    """Return the orders that were committed as done, yet finished nowhere; None as :func:`orders_under_way`."""
    still = orders_under_way(state, lags)
    if still is None:
        return None
    under_way = set(still)
    return [order.order_id for order in unfinished_orders(state) if order.order_id not in under_way]
