"""Records of any topic for the page: the newest ones that contain a text, and JSON lines for a download. Pure."""

import heapq
import itertools
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from operator import attrgetter

import msgspec

from console.runs.bundle import BundleRecord
from console.views.page.source import NotFound
from topics import BY_NAME, Topic

MAX_VALUE_CHARACTERS = 20_000
MAX_SHOWN = 200
MAX_EXPORTED = 10_000
LINES_PER_CHUNK = 500
"""Lines of a download that are encoded and sent together."""


class RecordText(msgspec.Struct, frozen=True, kw_only=True):
    """A record as text. ``value`` is cut to :data:`MAX_VALUE_CHARACTERS`; ``size`` is the whole value's, in bytes."""

    partition: int
    offset: int
    at_ms: int
    key: str
    headers: dict[str, str]
    size: int
    value: str


def topic_named(name: str) -> Topic:
    """Return a topic by its name; raise :class:`NotFound` with the known names."""
    try:
        return BY_NAME[name]
    except KeyError:
        raise NotFound(f"no topic {name!r}: there are {', '.join(BY_NAME)}") from None


def decode_record(record: BundleRecord) -> RecordText:
    """Return a record as text; bytes that are not UTF-8 are replaced."""
    value = record.value or b""
    return RecordText(
        partition=record.partition,
        offset=record.offset,
        at_ms=record.at_ms,
        key=(record.key or b"").decode(errors="replace"),
        headers={name: (text or b"").decode(errors="replace") for name, text in record.headers},
        size=len(value),
        value=value[:MAX_VALUE_CHARACTERS].decode(errors="replace"),
    )


def newest_records(records: Iterable[BundleRecord], needle: bytes, limit: int) -> list[BundleRecord]:
    """Return the ``limit`` newest records of a topic with ``needle`` in key or value, the newest first.

    Capitals of ASCII letters do not matter.
    """
    low = needle.lower()
    matching = (
        one for one in records if not low or low in (one.key or b"").lower() or low in (one.value or b"").lower()
    )
    return heapq.nlargest(limit, matching, key=attrgetter("at_ms", "partition", "offset"))


def last_of_each_partition(records: Iterable[BundleRecord], count: int) -> Iterator[BundleRecord]:
    """Yield the last ``count`` records of each partition, in the order of ``records`` within it.

    A live topic is read by offset from near its end, and its times need not rise. A bundle, which has the whole topic,
    is cut the same way, so that both have the same newest records.
    """
    last: defaultdict[int, deque[BundleRecord]] = defaultdict(lambda: deque(maxlen=count))
    for record in records:
        last[record.partition].append(record)
    yield from itertools.chain.from_iterable(last.values())


def json_lines(rows: Iterable[msgspec.Struct]) -> Iterator[bytes]:
    """Yield rows as JSON lines, :data:`LINES_PER_CHUNK` at a time."""
    rest = iter(rows)
    while chunk := list(itertools.islice(rest, LINES_PER_CHUNK)):
        yield msgspec.json.Encoder().encode_lines(chunk)
