"""The known part of a journal's changelog on one partition, and its owner.

Kafka orders the records of all writers by offset, so a process that knows everything below its own record knows what
preceded it. Each owner claims the partition with a higher incarnation; an owner that finds a higher claim has lost it.
Keys of records consist of partition, incarnation and kind; older ones have no incarnation and count as 0.
"""

import re
import secrets
from typing import NamedTuple

CLAIM = b"claim"
SNAPSHOT = b"snapshot"
ENTRY = b"entry/"
PART = b"part/"
STRIDE = 1 << 32
"""Maximum growth of the incarnation at a change of owner."""

Value = bytes | None
"""A record's value; None deletes the key."""

_LAYOUT = re.compile(rb"(\d+)/(?:(\d+)/)?(claim|snapshot|entry/\d+|part/\d+)")


class JournalKey(NamedTuple):
    """A parsed key; ``kind`` is :data:`CLAIM`, :data:`SNAPSHOT`, or :data:`ENTRY` or :data:`PART` with a number."""

    partition: int
    incarnation: int
    kind: bytes


def parse_key(key: bytes) -> JournalKey | None:
    """Parse a key; return None if it is not a journal's."""
    layout = _LAYOUT.fullmatch(key)
    return JournalKey(int(layout[1]), int(layout[2] or 0), layout[3]) if layout else None


def claim_key(partition: int, incarnation: int) -> bytes:
    """Return the key of an owner's claim of a partition."""
    return b"%d/%d/%s" % (partition, incarnation, CLAIM)


def snapshot_key(partition: int, incarnation: int) -> bytes:
    """Return the key of an owner's snapshot of one partition's state."""
    return b"%d/%d/%s" % (partition, incarnation, SNAPSHOT)


def entry_key(partition: int, incarnation: int, slot: int) -> bytes:
    """Return the key of a journal slot. Slots restart at 0 after each snapshot, so old entries are overwritten."""
    return b"%d/%d/%s%d" % (partition, incarnation, ENTRY, slot)


def part_key(partition: int, incarnation: int, number: int) -> bytes:
    """Return the key of a part of a large snapshot."""
    return b"%d/%d/%s%d" % (partition, incarnation, PART, number)


class ChangelogView:
    """The newest record of each key, by highest offset; records may be noted in any order and repeatedly.

    Everything below :attr:`position` is known. :attr:`claimed` is the highest claimed incarnation, 0 without any, and
    :attr:`claimed_at` the offset of that claim.
    """

    def __init__(self) -> None:
        self.position = 0
        self.claimed = 0
        self.claimed_at = -1
        self._records: dict[bytes, tuple[int, Value]] = {}

    def note(self, offset: int, key: bytes, value: Value) -> None:
        """Note one record; records between it and the position stay unknown."""
        if offset >= self._records.get(key, (-1, None))[0]:
            self._records[key] = (offset, value)
        name = parse_key(key)
        if name and name.kind == CLAIM and value is not None and name.incarnation > self.claimed:
            self.claimed, self.claimed_at = name.incarnation, offset
        if offset == self.position:
            self.position += 1

    def note_read(self, offset: int, key: bytes, value: Value) -> None:
        """Note a record read in order: unknown records below it were compacted away."""
        self.note(offset, key, value)
        self.position = max(self.position, offset + 1)

    def has(self, offset: int, key: bytes, value: Value) -> bool:
        """Return whether exactly this record is the newest of its key."""
        return self._records.get(key) == (offset, value)

    def stored(self) -> dict[bytes, bytes]:
        """Return the values by key, without deleted keys."""
        return {key: value for key, (_, value) in self._records.items() if value is not None}

    def claims_after(self, incarnation: int) -> list[bytes]:
        """Return the stored claims of higher incarnations, newest last."""
        later = [
            (key.incarnation, value)
            for name, value in self.stored().items()
            if (key := parse_key(name)) and key.kind == CLAIM and key.incarnation > incarnation
        ]
        return [value for _, value in sorted(later)]

    def next_incarnation(self) -> int:
        """Return an id higher than any seen; unique under concurrent calls."""
        newest = max((key.incarnation for name in self._records if (key := parse_key(name))), default=0)
        return newest + 1 + secrets.randbelow(STRIDE)

    def superseded(self, incarnation: int) -> list[bytes]:
        """Return the keys written by owners before ``incarnation``."""
        return [name for name in self.stored() if (key := parse_key(name)) and key.incarnation < incarnation]
