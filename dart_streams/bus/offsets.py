"""Which offsets may be committed when records are finished out of order: the contiguous done prefix. Pure.

Offsets are half-open as Kafka's are: a commit of 5 says that everything below 5 is done and 5 is read next. Offsets
have holes (compaction, transaction markers), so the prefix is over the records taken, not over all numbers.
"""

from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

P = TypeVar("P", bound=Hashable)


class TrackedOffset(NamedTuple, Generic[P]):
    """Where a record lies."""

    partition: P
    offset: int


class DonePrefix:
    """The records taken from one partition since it was assigned, and which of them are still under way."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._next: int | None = None

    def take(self, offset: int) -> None:
        """Note that the record at ``offset`` was taken; records are taken in ascending order."""
        self._open.add(offset)
        self._next = offset + 1 if self._next is None else max(self._next, offset + 1)

    def finish(self, offset: int) -> None:
        """Note that the record is done. One not under way is ignored."""
        self._open.discard(offset)

    @property
    def commit(self) -> int | None:
        """The offset to commit: the lowest one under way, or what follows the last one taken; None before any."""
        return min(self._open, default=self._next)


class Offsets(Generic[P]):
    """The done prefixes of the partitions that a consumer owns at present.

    After a rebalance a partition starts afresh: its unfinished records come again, to whoever owns it then.
    """

    def __init__(self) -> None:
        self._prefixes: dict[P, DonePrefix] = {}
        self._committed: dict[P, int] = {}

    def assign(self, partitions: Iterable[P]) -> None:
        """Start to own ``partitions``."""
        for partition in partitions:
            self._prefixes[partition] = DonePrefix()

    def revoke(self, partitions: Iterable[P]) -> None:
        """Stop to own ``partitions``: nothing of them is committed any more."""
        for partition in partitions:
            self._prefixes.pop(partition, None)
            self._committed.pop(partition, None)

    def take(self, place: TrackedOffset[P]) -> bool:
        """Note that a record was taken; False if its partition is no longer ours, so that it must not be worked on."""
        prefix = self._prefixes.get(place.partition)
        if prefix is None:
            return False
        prefix.take(place.offset)
        return True

    def finish(self, place: TrackedOffset[P]) -> None:
        """Note that a record is done. One of a partition that was taken away is ignored."""
        if (prefix := self._prefixes.get(place.partition)) is not None:
            prefix.finish(place.offset)

    def commits(self) -> dict[P, int]:
        """Return what can be committed and has not been yet."""
        ready = {partition: prefix.commit for partition, prefix in self._prefixes.items()}
        return {
            partition: offset
            for partition, offset in ready.items()
            if offset is not None and offset != self._committed.get(partition)
        }

    def committed(self, offsets: Mapping[P, int]) -> None:
        """Note that the broker has taken these commits."""
        self._committed.update({p: offset for p, offset in offsets.items() if p in self._prefixes})
