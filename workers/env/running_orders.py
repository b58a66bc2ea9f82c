"""Which orders this host runs, and which offsets that allows to commit. Pure.

An order may come more than once: redelivered after a rebalance, or ordered twice by a dispatch that died in between.
All its places are done when its one episode has ended.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from enum import Enum
from typing import Generic, TypeVar

from dart_streams.bus.offsets import Offsets, TrackedOffset

P = TypeVar("P", bound=Hashable)

REMEMBERED = 4096
"""So many ended orders are remembered; one that comes again later is played again, which downstream ignores."""


class Offer(Enum):
    """What to do with an order that was taken."""

    START = "start"
    RUNNING = "it runs here already"
    ENDED = "it has ended here already"
    LOST = "its partition is another host's by now"


class RunningOrders(Generic[P]):
    """The orders under way on this host, by id."""

    def __init__(self) -> None:
        self.offsets: Offsets[P] = Offsets()
        self.running: dict[str, list[TrackedOffset[P]]] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()

    def offer(self, order_id: str, place: TrackedOffset[P]) -> Offer:
        """Note an order taken at ``place``, and say what to do with it."""
        if not self.offsets.take(place):
            return Offer.LOST
        if order_id in self._ended:
            self.offsets.finish(place)
            return Offer.ENDED
        if order_id in self.running:
            self.running[order_id].append(place)
            return Offer.RUNNING
        self.running[order_id] = [place]
        return Offer.START

    def put_aside(self, place: TrackedOffset[P]) -> None:
        """Note a record that is no order and is among the dead letters."""
        if self.offsets.take(place):
            self.offsets.finish(place)

    def end(self, order_id: str) -> None:
        """Note that the order's episode has ended, and its end is told."""
        for place in self.running.pop(order_id, []):
            self.offsets.finish(place)
        self._ended[order_id] = None
        while len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)

    def give_back(self, order_id: str) -> None:
        """Forget an order that did not end: its places stay under way, so the group delivers it again."""
        self.running.pop(order_id, None)

    def assign(self, partitions: Iterable[P]) -> None:
        """Start to own ``partitions``."""
        self.offsets.assign(partitions)

    def revoke(self, partitions: Iterable[P]) -> None:
        """Stop to own ``partitions``; their episodes go on, and are recognised if they come back."""
        gone = set(partitions)
        self.offsets.revoke(gone)
        for places in self.running.values():
            places[:] = [place for place in places if place.partition not in gone]
