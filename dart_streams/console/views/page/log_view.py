"""Records of any topic as text, for the page. Pure."""

import msgspec

from dart_streams.console.runs.bundle import BundleRecord
from dart_streams.console.views.page.source import NotFound
from topics import BY_NAME, Topic

LONGEST = 20_000
"""Characters of a value that are shown."""
LIMIT = 200
"""Records that are shown."""
EXPORTED = 10_000
"""Records that are exported, at most."""


class RecordText(msgspec.Struct, frozen=True, kw_only=True):
    """A record as text; ``size`` is its value's in bytes, of which ``value`` may be the beginning only."""

    partition: int
    offset: int
    at_ms: int
    key: str
    headers: dict[str, str]
    size: int
    value: str


def topic_named(name: str) -> Topic:
    """Return a topic; raise :class:`NotFound` that names those there are."""
    try:
        return BY_NAME[name]
    except KeyError:
        raise NotFound(f"no topic {name!r}: there are {', '.join(BY_NAME)}") from None


def readable(record: BundleRecord) -> RecordText:
    """Return a record as text."""
    value = record.value or b""
    return RecordText(
        partition=record.partition,
        offset=record.offset,
        at_ms=record.at_ms,
        key=(record.key or b"").decode(errors="replace"),
        headers={name: (text or b"").decode(errors="replace") for name, text in record.headers},
        size=len(value),
        value=value[:LONGEST].decode(errors="replace"),
    )
