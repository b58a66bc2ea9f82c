"""Records in flight and committable offsets: the contiguous finished prefix. Pure.

A committed offset of 5 means that everything below 5 is finished and 5 is fetched next. Offsets have gaps (compaction,
transaction markers), so the prefix covers records taken, not numbers. A record may be delivered repeatedly, after a
rebalance or a producer's crash; all its offsets finish with the handled delivery.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

P = TypeVar("P", bound=Hashable)

FINISHED_IDS = 4096
"""Finished records remembered; a later redelivery is handled again, and its reader ignores the effects."""


class TrackedOffset(NamedTuple, Generic[P]):
    """Partition and offset of a record."""

    partition: P
    offset: int


class Offsets(Generic[P]):
    """Finished prefixes of the assigned partitions: the records taken since the assignment, and those unfinished.

    A reassigned partition starts afresh: its unfinished records are delivered to the new owner.
    """

    def __init__(self) -> None:
        self._open: dict[P, set[int]] = {}
        self._next: dict[P, int] = {}
        self._committed: dict[P, int] = {}

    def assign(self, partitions: Iterable[P]) -> None:
        """Start newly assigned ``partitions``."""
        for partition in partitions:
            self._open[partition] = set()
            self._next.pop(partition, None)

    def revoke(self, partitions: Iterable[P]) -> None:
        """Forget revoked ``partitions``, of which nothing more is committed."""
        for partition in partitions:
            for state in (self._open, self._next, self._committed):
                state.pop(partition, None)

    def take(self, place: TrackedOffset[P]) -> bool:
        """Add a record; return False if its partition is no longer assigned and it must not be processed.

        Offsets of a partition ascend.
        """
        if place.partition not in self._open:
            return False
        self._open[place.partition].add(place.offset)
        self._next[place.partition] = max(self._next.get(place.partition, 0), place.offset + 1)
        return True

    def finish(self, place: TrackedOffset[P]) -> None:
        """Mark a record as finished; one of a revoked partition is ignored."""
        self._open.get(place.partition, set()).discard(place.offset)

    def ready(self) -> dict[P, int]:
        """Return all committable offsets, committed ones included: the lowest unfinished, or that after the last."""
        return {partition: min(self._open[partition], default=end) for partition, end in self._next.items()}

    def commits(self) -> dict[P, int]:
        """Return the committable offsets that are not committed yet."""
        return {partition: at for partition, at in self.ready().items() if at != self._committed.get(partition)}

    def committed(self, offsets: Mapping[P, int]) -> None:
        """Mark offsets as committed."""
        self._committed.update({p: offset for p, offset in offsets.items() if p in self._open})


class DeliveryStatus(Enum):
    """Status of a delivered record; only a new one is handled."""

    NEW = "new"
    IN_FLIGHT = "in flight already"
    FINISHED = "finished already"
    REVOKED = "its partition is revoked"


class InFlightRecords(Generic[P]):
    """Records that a consumer handles, by id."""

    def __init__(self) -> None:
        self.offsets: Offsets[P] = Offsets()
        self.in_flight: dict[str, list[TrackedOffset[P]]] = {}
        self._finished: OrderedDict[str, None] = OrderedDict()

    def deliver(self, record_id: str, place: TrackedOffset[P]) -> DeliveryStatus:
        """Track a record delivered at ``place``; return its status."""
        if not self.offsets.take(place):
            return DeliveryStatus.REVOKED
        if record_id in self._finished:
            self.offsets.finish(place)
            return DeliveryStatus.FINISHED
        status = DeliveryStatus.IN_FLIGHT if record_id in self.in_flight else DeliveryStatus.NEW
        self.in_flight.setdefault(record_id, []).append(place)
        return status

    def forget(self, record_id: str) -> None:
        """Drop an unhandled record, which is redelivered."""
        self.in_flight.pop(record_id, None)

    def skip(self, place: TrackedOffset[P]) -> None:
        """Finish a record without an id, once it is a dead letter."""
        if self.offsets.take(place):
            self.offsets.finish(place)

    def finish(self, record_id: str) -> None:
        """Finish a record whose effects are durable."""
        for place in self.in_flight.pop(record_id, []):
            self.offsets.finish(place)
        self._finished[record_id] = None
        while len(self._finished) > FINISHED_IDS:
            self._finished.popitem(last=False)

    def assign(self, partitions: Iterable[P]) -> None:
        """Track ``partitions``."""
        self.offsets.assign(partitions)

    def revoke(self, partitions: Iterable[P]) -> None:
        """Stop tracking ``partitions``; their records stay in flight and are recognized on redelivery."""
        revoked = set(partitions)
        self.offsets.revoke(revoked)
        for places in self.in_flight.values():
            places[:] = [place for place in places if place.partition not in revoked]
