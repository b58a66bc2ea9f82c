"""Keys of journal records: partition, the writer's incarnation, and kind.

Older keys have no incarnation and count as incarnation 0.
"""

import re
from typing import NamedTuple

CLAIM = b"claim"
SNAPSHOT = b"snapshot"
ENTRY = b"entry/"

_LAYOUT = re.compile(rb"(\d+)/(?:(\d+)/)?(claim|snapshot|entry/\d+)")


class JournalKey(NamedTuple):
    """A parsed key; ``kind`` is :data:`CLAIM`, :data:`SNAPSHOT`, or :data:`ENTRY` with the slot's number."""

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
