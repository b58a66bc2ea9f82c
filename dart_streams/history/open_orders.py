"""What became of orders that no trajectory has finished: open, or lost. Pure."""

from collections.abc import Sequence

from dart_streams.bus.lag import Lag
from dart_streams.history.run_state import RunState
from topics.rollout_orders import TOPIC


def still_open(progress: RunState, lags: Sequence[Lag]) -> list[str]:
    """Return the orders under way when ``lags`` were read: not finished, and not committed by the env workers.

    A resumed run, or another worker of the group, gets them again.
    """
    committed = {lag.partition: lag.committed for lag in lags if lag.topic == TOPIC.name}
    places = {order.order_id: progress.orders[order.order_id][1] for order in progress.unfinished()}
    return [identity for identity, place in places.items() if place.offset >= committed.get(place.partition, 0)]


def lost(progress: RunState, lags: Sequence[Lag]) -> list[str]:
    """Return the orders that were committed as done, yet finished nowhere."""
    still = set(still_open(progress, lags))
    return [order.order_id for order in progress.unfinished() if order.order_id not in still]
