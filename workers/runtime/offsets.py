"""Which offsets may be committed when records are finished out of order: the contiguous finished prefix. Pure.

As in Kafka, a committed offset of 5 means that everything below 5 is finished and 5 is fetched next. Offsets have holes
(compaction, transaction markers), so the prefix is over the records taken, not over all numbers.
"""

from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

P = TypeVar("P", bound=Hashable)


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

    def commits(self) -> dict[P, int]:
        """Return the offsets that can be committed and are not yet."""
        ready = {partition: prefix.commit for partition, prefix in self._prefixes.items()}
        return {
            partition: offset
            for partition, offset in ready.items()
            if offset is not None and offset != self._committed.get(partition)
        }

    def committed(self, offsets: Mapping[P, int]) -> None:
        """Mark offsets as committed."""
        self._committed.update({p: offset for p, offset in offsets.items() if p in self._prefixes})
