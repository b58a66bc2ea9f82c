"""One partition of a journal's changelog as far as it is known, and who owns it.

Kafka gives each record of a partition an offset, in one order for all writers, so a process that knows everything below
the offset of its own record knows what came before it. Owners differ in their incarnation, a number that grows:
each claims a higher one with a record, and whoever finds a higher claim than its own has lost the partition.
"""

import secrets

from dart_streams.curation.journal_keys import CLAIM, parse_key

STRIDE = 1 << 32
"""By how much the incarnation grows at most with each owner."""

Value = bytes | None
"""A record's value; None deletes its key."""


class ChangelogView:
    """The newest record of each key. Records may be noted in any order and more than once: the highest offset counts.

    Everything below :attr:`position` is known. :attr:`claimed` is the highest incarnation that was claimed, 0 if none
    was, and :attr:`claimed_at` the offset of that claim.
    """

    def __init__(self) -> None:
        self.position = 0
        self.claimed = 0
        self.claimed_at = -1
        self._records: dict[bytes, tuple[int, Value]] = {}

    def note(self, offset: int, key: bytes, value: Value) -> None:
        """Note one record; what is between it and the position stays unknown."""
        if offset >= self._records.get(key, (-1, None))[0]:
            self._records[key] = (offset, value)
        name = parse_key(key)
        if name and name.kind == CLAIM and value is not None and name.incarnation > self.claimed:
            self.claimed, self.claimed_at = name.incarnation, offset
        if offset == self.position:
            self.position += 1

    def note_read(self, offset: int, key: bytes, value: Value) -> None:
        """Note a record read in the partition's order: what is unknown below it was compacted away."""
        self.note(offset, key, value)
        self.position = max(self.position, offset + 1)

    def has(self, offset: int, key: bytes, value: Value) -> bool:
        """Say whether this very record is the newest of its key."""
        return self._records.get(key) == (offset, value)

    def stored(self) -> dict[bytes, bytes]:
        """Return the values by key; a deleted key has none."""
        return {key: value for key, (_, value) in self._records.items() if value is not None}

    def claims_after(self, incarnation: int) -> list[bytes]:
        """Return the values of claims of higher incarnations, as far as they are still stored, the newest last."""
        later = [
            (key.incarnation, value)
            for name, value in self.stored().items()
            if (key := parse_key(name)) and key.kind == CLAIM and key.incarnation > incarnation
        ]
        return [value for _, value in sorted(later)]

    def next_incarnation(self) -> int:
        """Return an id higher than that of every record; it is unique under concurrent calls."""
        newest = max((key.incarnation for name in self._records if (key := parse_key(name))), default=0)
        return newest + 1 + secrets.randbelow(STRIDE)

    def superseded(self, incarnation: int) -> list[bytes]:
        """Return the keys of what owners before ``incarnation`` wrote."""
        return [name for name in self.stored() if (key := parse_key(name)) and key.incarnation < incarnation]
