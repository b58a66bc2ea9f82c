"""How often a member has died while it handled something: counted by the consumer group, in its offsets. Pure.

Kafka keeps a text with each committed offset. A member writes into it what it has begun, by name, before it handles it,
and takes that out when it gives a partition up in order. So whoever is assigned the partition next knows what was in
the hands of a member that did not: one that was killed, that crashed, or that stood still for longer than its session.
The text outlives every process and host; it is bounded by the broker (``offset.metadata.max.bytes``).
"""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

import msgspec

P = TypeVar("P", bound=Hashable)

NOTE_BYTES = 4000
"""Of the 4096 that a broker takes by default."""


class DeathNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a committed offset's text says, by name.

    ``begun`` is in the hands of the member that committed it, ``deaths`` how often one has died meanwhile since the
    name was last finished, ``lethal`` how often it was given to :meth:`DeathCounts.add_lethal`.
    """

    begun: tuple[str, ...] = ()
    deaths: dict[str, int] = {}
    lethal: dict[str, int] = {}


def read_note(text: str) -> DeathNote:
    """Return the note of a committed offset; an empty one if a stranger has written the text."""
    try:
        return msgspec.json.decode(text, type=DeathNote) if text else DeathNote()
    except (msgspec.DecodeError, UnicodeEncodeError):
        return DeathNote()


class DeathCounts(Generic[P]):
    """What is in the hands of this member, and with what others have died: each record has the name of its kind."""

    def __init__(self) -> None:
        self._begun: dict[P, dict[str, str]] = {}
        self.deaths: dict[str, int] = {}
        self.lethal: dict[str, int] = {}

    def learn(self, note: DeathNote, *, died: bool) -> None:
        """Take over the note of a partition; ``died`` if who committed it did not give the partition up.

        The same death is in the notes of all partitions that its member had: it counts once.
        """
        for name in {*note.deaths, *note.begun}:
            count = note.deaths.get(name, 0) + (died and name in note.begun)
            self.deaths[name] = max(count, self.deaths.get(name, 0))
        for name, count in note.lethal.items():
            self.lethal[name] = max(count, self.lethal.get(name, 0))

    def add_lethal(self, name: str) -> int:
        """Count a name that has ended members often enough, and begin its deaths anew; return its count."""
        self.deaths.pop(name, None)
        self.lethal[name] = self.lethal.get(name, 0) + 1
        return self.lethal[name]

    def revoke(self, partitions: Iterable[P]) -> None:
        """Let go of partitions."""
        for partition in partitions:
            self._begun.pop(partition, None)

    def begin(self, partition: P, record_id: str, name: str) -> None:
        """Take a record into this member's hands."""
        self._begun.setdefault(partition, {})[record_id] = name

    def finish(self, record_id: str, name: str) -> None:
        """Let go of a record that is finished: its name has not ended this member."""
        for begun in self._begun.values():
            begun.pop(record_id, None)
        self.deaths.pop(name, None)

    @property
    def in_hand(self) -> set[str]:
        """The ids of the records in this member's hands."""
        return {record_id for begun in self._begun.values() for record_id in begun}

    def note(self, partition: P, *, given_up: bool = False) -> str:
        """Return the text to commit of a partition; ``given_up`` if this member lets go of it in order.

        If it were too long, it has a part of the names: a death with the others is not counted.
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
    """Return the names of the highest counts first."""
    return sorted(counts, key=lambda name: (-counts[name], name))
