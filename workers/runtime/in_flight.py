"""Which records are in flight, and which offsets may be committed: the contiguous finished prefix. Pure.

As in Kafka, a committed offset of 5 means that everything below 5 is finished and 5 is fetched next. Offsets have holes
(compaction, transaction markers), so the prefix is over the records taken, not over all numbers. A record may be
delivered more than once: after a rebalance, or because its producer died between two steps. All of its offsets are
finished when the one delivery that was handled is.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

P = TypeVar("P", bound=Hashable)

FINISHED_IDS = 4096
"""Number of finished records remembered; one that is redelivered later is handled again, which its reader ignores."""


class TrackedOffset(NamedTuple, Generic[P]):
    """The partition and offset of a record."""

    partition: P
    offset: int


class DonePrefix:
    """The records taken from one partition since it was assigned, and which of them are unfinished."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._next: int | None = None

    def take(self, offset: int) -> None:
        """Add the record at ``offset``; records are taken in ascending order."""
        self._open.add(offset)
        self._next = offset + 1 if self._next is None else max(self._next, offset + 1)

    def finish(self, offset: int) -> None:
        """Mark the record as finished; one that is not unfinished is ignored."""
        self._open.discard(offset)

    @property
    def commit(self) -> int | None:
        """The offset to commit: the lowest unfinished one, or the one after the last taken; None before any."""
        return min(self._open, default=self._next)


class Offsets(Generic[P]):
    """The finished prefixes of the partitions assigned to a consumer.

    After a rebalance a partition starts afresh: its unfinished records are delivered again, to its new owner.
    """

    def __init__(self) -> None:
        self._prefixes: dict[P, DonePrefix] = {}
        self._committed: dict[P, int] = {}

    def assign(self, partitions: Iterable[P]) -> None:
        """Start with newly assigned ``partitions``."""
        for partition in partitions:
            self._prefixes[partition] = DonePrefix()

    def revoke(self, partitions: Iterable[P]) -> None:
        """Forget revoked ``partitions``: nothing of them is committed any more."""
        for partition in partitions:
            self._prefixes.pop(partition, None)
            self._committed.pop(partition, None)

    def take(self, place: TrackedOffset[P]) -> bool:
        """Add a record and return True; False if its partition is no longer assigned: then it must not be processed."""
        prefix = self._prefixes.get(place.partition)
        if prefix is None:
            return False
        prefix.take(place.offset)
        return True

    def finish(self, place: TrackedOffset[P]) -> None:
        """Mark a record as finished; one of a revoked partition is ignored."""
        if (prefix := self._prefixes.get(place.partition)) is not None:
            prefix.finish(place.offset)

    def ready(self) -> dict[P, int]:
        """Return the offsets that can be committed, also those that are."""
        ready = {partition: prefix.commit for partition, prefix in self._prefixes.items()}
        return {partition: offset for partition, offset in ready.items() if offset is not None}

    def commits(self) -> dict[P, int]:
        """Return the offsets that can be committed and are not yet."""
        return {partition: at for partition, at in self.ready().items() if at != self._committed.get(partition)}

    def committed(self, offsets: Mapping[P, int]) -> None:
        """Mark offsets as committed."""
        self._committed.update({p: offset for p, offset in offsets.items() if p in self._prefixes})


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

    def forget(self, record_id: str) -> None:
        """Drop a record that is not handled: it is delivered again."""
        self.in_flight.pop(record_id, None)

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
        """Stop to track ``partitions``. Their records stay in flight, and are recognized if they are redelivered."""
        revoked = set(partitions)
        self.offsets.revoke(revoked)
        for places in self.in_flight.values():
            places[:] = [place for place in places if place.partition not in revoked]
