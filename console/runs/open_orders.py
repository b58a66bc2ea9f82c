"""Finds a run's open and lost orders from its topics and the env workers' committed offsets. Pure."""

from collections.abc import Sequence

from console.runs.run_state import RunState
from dart_streams.bus.lag import Lag
from topics import Topic, observations, rollout_orders
from topics.rollout_orders import RolloutOrder
from topics.values import Purpose


def unfinished_orders(state: RunState, purpose: Purpose | None = None) -> list[RolloutOrder]:
    """Return the orders without a trajectory."""
    orders = (order for order, _ in state.orders.values() if order.order_id not in state.finished)
    return [order for order in orders if purpose in (None, order.purpose)]


def unannounced_orders(state: RunState, lags: Sequence[Lag]) -> list[str]:
    """Return the unfinished orders that env workers had committed when ``lags`` were read.

    An env worker commits an order when it has published its episode's end; the recorder announces the trajectory later.
    """
    committed = committed_of(lags, "env", rollout_orders.TOPIC)
    places = {order.order_id: state.orders[order.order_id][1] for order in unfinished_orders(state)}
    return [order_id for order_id, place in places.items() if place.offset < committed.get(place.partition, 0)]


def lost_orders(state: RunState, lags: Sequence[Lag] | None) -> list[str] | None:
    """Return the unfinished orders that nobody will finish; None if that depends on ``lags`` and they are None.

    Env workers had committed them, and the log has no end of their episode, or the recorder had committed that end.
    """
    if lags is None:
        return None if unfinished_orders(state) else []
    recorded = committed_of(lags, "recorder", observations.TOPIC)
    ends = state.unrecorded
    return [
        order_id
        for order_id in unannounced_orders(state, lags)
        if order_id not in ends or ends[order_id].offset < recorded.get(ends[order_id].partition, 0)
    ]


def orders_under_way(state: RunState, lags: Sequence[Lag] | None) -> list[str] | None:
    """Return the unfinished orders that are not lost; None as :func:`lost_orders`.

    A resumed run, or another worker of the group, gets them again.
    """
    if (lost := lost_orders(state, lags)) is None:
        return None
    gone = set(lost)
    return [order.order_id for order in unfinished_orders(state) if order.order_id not in gone]


def committed_of(lags: Sequence[Lag], group: str, topic: Topic) -> dict[int, int]:
    """Return a group's committed offsets by partition of a topic."""
    return {lag.partition: lag.committed for lag in lags if (lag.group, lag.topic) == (group, topic.name)}
