"""Counts of members that died while handling a record, kept in the consumer group's offsets. Pure.

Kafka stores a text with each committed offset. A member notes there by name what it begins, and removes it when it
gives up a partition in order. The next owner so learns what a killed, crashed or frozen member was handling. The text
outlives processes and hosts; the broker bounds it (``offset.metadata.max.bytes``).
"""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

import msgspec

from dart_streams.config.text import MALFORMED

P = TypeVar("P", bound=Hashable)

NOTE_BYTES = 4000
"""Maximum note, of the broker's default of 4096."""


class DeathNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """The text of a committed offset, by name.

    ``begun`` is handled by the committing member, ``deaths`` counts deaths since the name last finished, and ``lethal``
    calls of :meth:`DeathCounts.add_lethal`.
    """

    begun: tuple[str, ...] = ()
    deaths: dict[str, int] = {}
    lethal: dict[str, int] = {}


def read_note(text: str) -> DeathNote:
    """Parse the note of a committed offset; empty for foreign text."""
    try:
        return msgspec.json.decode(text, type=DeathNote) if text else DeathNote()
    except (UnicodeEncodeError, *MALFORMED):
        return DeathNote()


class DeathCounts(Generic[P]):
    """Names of the records that this member handles, and deaths of members by name."""

    def __init__(self) -> None:
        self._begun: dict[P, dict[str, str]] = {}
        self.deaths: dict[str, int] = {}
        self.lethal: dict[str, int] = {}

    def learn(self, note: DeathNote, *, died: bool) -> None:
        """Merge a partition's note; ``died`` if its author did not give the partition up.

        The notes of all partitions of a member repeat its death, which counts once.
        """
        for name in {*note.deaths, *note.begun}:
            count = note.deaths.get(name, 0) + (died and name in note.begun)
            self.deaths[name] = max(count, self.deaths.get(name, 0))
        for name, count in note.lethal.items():
            self.lethal[name] = max(count, self.lethal.get(name, 0))

    def add_lethal(self, name: str) -> int:
        """Count a name that has ended members often enough and reset its deaths; return its count."""
        self.deaths.pop(name, None)
        self.lethal[name] = self.lethal.get(name, 0) + 1
        return self.lethal[name]

    def revoke(self, partitions: Iterable[P]) -> None:
        """Release partitions."""
        for partition in partitions:
            self._begun.pop(partition, None)

    def begin(self, partition: P, record_id: str, name: str) -> None:
        """Note that this member handles a record."""
        self._begun.setdefault(partition, {})[record_id] = name

    def finish(self, record_id: str, name: str) -> None:
        """Release a finished record and reset its name's deaths."""
        for begun in self._begun.values():
            begun.pop(record_id, None)
        self.deaths.pop(name, None)

    @property
    def in_hand(self) -> set[str]:
        """Ids of the records that this member handles."""
        return {record_id for begun in self._begun.values() for record_id in begun}

    def note(self, partition: P, *, given_up: bool = False) -> str:
        """Return the text to commit for a partition; ``given_up`` if this member releases it in order.

        An oversized note has part of the names; deaths with the others are not counted.
        """
        begun = [] if given_up else sorted({*self._begun.get(partition, {}).values()})
        parts: list[list[str]] = [sort_by_count(self.lethal), sort_by_count(self.deaths), begun]
        while True:
            lethal, deaths, begun = parts
            note = DeathNote(
                begun=tuple(begun),
                deaths={name: self.deaths[name] for name in deaths},
                lethal={name: self.lethal[name] for name in lethal},
            )
            text = msgspec.json.encode(note)
            if len(text) <= NOTE_BYTES:
                return "" if text == b"{}" else text.decode()
            longest = max(parts, key=len)
            del longest[len(longest) // 2 :]


def sort_by_count(counts: dict[str, int]) -> list[str]:
    """Return the names in descending order of their counts."""
    return sorted(counts, key=lambda name: (-counts[name], name))
