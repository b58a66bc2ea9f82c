"""Which records are in flight, and which offsets may be committed. Pure.

A record may be delivered more than once: after a rebalance, or because its producer died between two steps. All of its
offsets are finished when the one delivery that was handled is.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from enum import Enum
from typing import Generic, TypeVar

from workers.runtime.offsets import Offsets, TrackedOffset

P = TypeVar("P", bound=Hashable)

FINISHED_IDS = 4096
"""Number of finished records remembered; one that is redelivered later is handled again, which its reader ignores."""


class DeliveryStatus(Enum):
    """What a delivered record is to this consumer; only a new one is handled."""

    NEW = "new"
    IN_FLIGHT = "in flight already"
    FINISHED = "finished already"
    REVOKED = "its partition is revoked"


class InFlightRecords(Generic[P]):
    """The records that one consumer handles at present, by id."""

    def __init__(self) -> None:
        self.offsets: Offsets[P] = Offsets()
        self.in_flight: dict[str, list[TrackedOffset[P]]] = {}
        self._finished: OrderedDict[str, None] = OrderedDict()

    def deliver(self, record_id: str, place: TrackedOffset[P]) -> DeliveryStatus:
        """Track a record delivered at ``place``, and return whether to handle it."""
        if not self.offsets.take(place):
            return DeliveryStatus.REVOKED
        if record_id in self._finished:
            self.offsets.finish(place)
            return DeliveryStatus.FINISHED
        status = DeliveryStatus.IN_FLIGHT if record_id in self.in_flight else DeliveryStatus.NEW
        self.in_flight.setdefault(record_id, []).append(place)
        return status

    def skip(self, place: TrackedOffset[P]) -> None:
        """Finish a record without an id, once it is a dead letter."""
        if self.offsets.take(place):
            self.offsets.finish(place)

    def finish(self, record_id: str) -> None:
        """Finish a record: its effects are durable."""
        for place in self.in_flight.pop(record_id, []):
            self.offsets.finish(place)
        self._finished[record_id] = None
        while len(self._finished) > FINISHED_IDS:
            self._finished.popitem(last=False)

    def assign(self, partitions: Iterable[P]) -> None:
        """Start to track ``partitions``."""
        self.offsets.assign(partitions)

    def revoke(self, partitions: Iterable[P]) -> None:
        """Stop to track ``partitions``. Their records stay in flight, and are recognised if they are redelivered."""
        revoked = set(partitions)
        self.offsets.revoke(revoked)
        for places in self.in_flight.values():
            places[:] = [place for place in places if place.partition not in revoked]
