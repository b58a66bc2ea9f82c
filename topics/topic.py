"""The specification of a topic: its name, event and key, and its settings on the broker."""

from typing import Any, Literal

import msgspec

MIB = 2**20
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """The specification of one topic, declared beside its event.

    ``name`` has no prefix: a deployment adds ``bus.prefix``. ``key`` names the event field with the record's key.
    A ``shared`` topic is spread over the workers of a kind, and may have any number of partitions. The others keep one
    order. Records are kept as long as the run. A deployment may set a retention, but none below ``shortest_ms``, and
    none at all where that is None. ``max_message_bytes`` bounds a record's value at
    producers and consumers. Every topic but the weights has a dead-letter topic, ``<name>.dlq``.
    """

    name: str
    event: type[msgspec.Struct]
    key: str
    version: int = 1
    partitions: int = 1
    shared: bool = False
    cleanup: Literal["delete", "compact"] = "delete"
    shortest_ms: int | None = HOUR_MS
    max_message_bytes: int = 4 * MIB

    @property
    def schema(self) -> str:
        """The value of the ``schema`` header, for instance ``observations/1``."""
        return f"{self.name}/{self.version}"

    def key_of(self, event: Any) -> str:
        """Return the record key of an event of this topic."""
        return str(getattr(event, self.key))
