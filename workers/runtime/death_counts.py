"""How often the member that handled a record has died: counted by the consumer group, in its committed offsets. Pure.

Kafka keeps a text with each committed offset. A member writes into it which records it has begun, before it handles
them, and takes them out when it gives a partition up in order. So whoever is assigned the partition next knows which
records were in the hands of a member that did not: one that was killed, that crashed, or that stood still for longer
than its session. The text outlives every process and host; it is bounded by the broker (``offset.metadata.max.bytes``).
"""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

import msgspec

from workers.runtime.in_flight import TrackedOffset

P = TypeVar("P", bound=Hashable)

NOTE_BYTES = 4000
"""Of the 4096 that a broker takes by default."""
LETHAL = 20
"""Names of what has ended members that a note keeps."""


class DeathNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a committed offset's text says; records are named by their distance from that offset.

    ``begun`` are in the hands of the member that committed it, ``deaths`` how often one has died with each, ``lethal``
    how often each name was given to :meth:`DeathCounts.add_lethal`.
    """

    begun: tuple[int, ...] = ()
    deaths: dict[int, int] = {}
    lethal: dict[str, int] = {}


def read_note(text: str) -> DeathNote:
    """Return the note of a committed offset; an empty one if a stranger has written the text."""
    try:
        return msgspec.json.decode(text, type=DeathNote) if text else DeathNote()
    except (msgspec.DecodeError, UnicodeEncodeError):
        return DeathNote()


class DeathCounts(Generic[P]):
    """The records in the hands of this member, and how often others have died with them."""

    def __init__(self) -> None:
        self._begun: dict[P, set[int]] = {}
        self._deaths: dict[P, dict[int, int]] = {}
        self.lethal: dict[str, int] = {}
        """How often each name was given, by any member."""

    def assign(self, partition: P, committed: int, note: DeathNote) -> None:
        """Start with a partition: what its note says was begun and not given up has seen one more death."""
        deaths = {committed + distance: count for distance, count in note.deaths.items()}
        for distance in note.begun:
            deaths[committed + distance] = deaths.get(committed + distance, 0) + 1
        self._deaths[partition], self._begun[partition] = deaths, set()

    def learn(self, note: DeathNote) -> None:
        """Take over what the note of any partition has as lethal."""
        for name, count in note.lethal.items():
            self.lethal[name] = max(count, self.lethal.get(name, 0))

    def add_lethal(self, name: str) -> int:
        """Count a name, whose records have ended members; return its count."""
        self.lethal[name] = self.lethal.get(name, 0) + 1
        return self.lethal[name]

    def revoke(self, partitions: Iterable[P]) -> None:
        """Forget partitions."""
        for partition in partitions:
            self._deaths.pop(partition, None)
            self._begun.pop(partition, None)

    def deaths(self, place: TrackedOffset[P]) -> int:
        """Return how often a member has died with a record in its hands."""
        return self._deaths.get(place.partition, {}).get(place.offset, 0)

    def begin(self, place: TrackedOffset[P]) -> None:
        """Take a record into this member's hands."""
        self._begun.setdefault(place.partition, set()).add(place.offset)

    @property
    def in_hand(self) -> set[TrackedOffset[P]]:
        """The records in this member's hands."""
        return {TrackedOffset(partition, offset) for partition, begun in self._begun.items() for offset in begun}

    def finish(self, places: Iterable[TrackedOffset[P]]) -> None:
        """Let go of records that are finished."""
        for place in places:
            self._begun.get(place.partition, set()).discard(place.offset)
            self._deaths.get(place.partition, {}).pop(place.offset, None)

    def note(self, partition: P, committed: int, *, given_up: bool = False) -> str:
        """Return the text to commit with an offset; ``given_up`` if this member lets go of the partition in order.

        If it were too long, it has the first records only: a death with the others is not counted.
        """
        begun = () if given_up else sorted(self._begun.get(partition, ()))
        deaths = self._deaths.get(partition, {})
        most = sorted(self.lethal, key=lambda name: (-self.lethal[name], name))[:LETHAL]
        kept = len(begun) + len(deaths)
        while True:
            text = msgspec.json.encode(
                DeathNote(
                    begun=tuple(offset - committed for offset in begun if offset >= committed)[:kept],
                    deaths={at - committed: deaths[at] for at in sorted(deaths)[:kept] if at >= committed},
                    lethal={name: self.lethal[name] for name in most},
                )
            )
            if len(text) <= NOTE_BYTES:
                return "" if text == b"{}" else text.decode()
            kept, most = kept // 2, most if kept else most[:-1]
