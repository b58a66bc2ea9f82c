"""Dead letters: a record that cannot be processed goes to the dead-letter topic, with the reason.

A record that no letter can carry, being empty or too large once decompressed, leaves a *stub*: the letter's headers,
the size and digest of the value, and its first kilobyte. The stub of an unread batch
(:mod:`~dart_streams.bus.compressed_batches`) describes the compressed batch.
"""

import hashlib
from typing import Any, NamedTuple

import structlog
from aiokafka.errors import MessageSizeTooLargeError, RecordListTooLargeError
from opentelemetry import metrics

from dart_streams.bus.clients import Publisher
from dart_streams.bus.codec import UNREADABLE, Header, find_header, header_bytes
from dart_streams.bus.topology import DEAD_LETTERS as SUFFIX
from dart_streams.bus.topology import has_dead_letters, letter_bytes
from dart_streams.clock import now_ms
from dart_streams.errors import MAX_REASON
from dart_streams.telemetry import names
from dart_streams.telemetry.instruments import create_counter
from topics import Topic

ERROR = "dlq-error"
TOPIC = "dlq-topic"
PARTITION = "dlq-partition"
OFFSET = "dlq-offset"
TRIES = "dlq-tries"
AT_MS = "dlq-at-ms"
STUB = "dlq-stub"
"""Only stubs have this header: the reason why the record is missing."""
SIZE = "dlq-size"
"""Bytes of the value behind a stub; absent if it was null."""
KEY_SIZE = "dlq-key-size"
SHA256 = "dlq-sha256"
HEAD_BYTES = 1024
"""Bytes of the value in a stub; keys and headers up to this size are included."""
OVERHEAD_BYTES = 4096
"""Allowance for a batch of one letter besides key, value and headers."""


class Letter(NamedTuple):
    """The record to publish: complete, or a stub."""

    key: bytes | None
    value: bytes | None
    headers: list[Header]


def place_headers(record: Any, error: str, tries: int, at_ms: int) -> list[Header]:
    """Return the headers with a dead letter's origin and reason."""
    fields = {ERROR: error[:MAX_REASON], TOPIC: record.topic, PARTITION: record.partition, OFFSET: record.offset}
    fields |= {TRIES: tries, AT_MS: at_ms}
    return [(name, str(value).encode(errors="replace")) for name, value in fields.items()]


def letter_of(topic: Topic, record: Any, place: list[Header]) -> Letter:
    """Return the letter of ``record``: complete if the dead-letter topic takes it, else a stub."""
    if record.key is None and record.value is None:
        return stub_of(record, place, "the record has neither key nor value, and no client sends such a one")
    if (unread := find_header(record.headers, UNREADABLE)) is not None:
        return Letter(None, record.value, [*record.headers, *place, (STUB, unread)])
    whole = Letter(record.key, record.value, [*record.headers, *place])
    size = len(record.key or b"") + len(record.value or b"") + header_bytes(whole.headers) + OVERHEAD_BYTES
    limit = letter_bytes(topic)
    return whole if size <= limit else stub_of(record, place, f"the letter would take {size} of at most {limit} bytes")


def stub_of(record: Any, place: list[Header], reason: str) -> Letter:
    """Return the stub of ``record``."""
    facts: dict[str, str] = {STUB: reason}
    if record.value is not None:
        facts |= {SIZE: str(len(record.value)), SHA256: hashlib.sha256(record.value).hexdigest()}
    if record.key is not None:
        facts[KEY_SIZE] = str(len(record.key))
    key = record.key if record.key is not None and len(record.key) <= HEAD_BYTES else None
    original = [*record.headers] if header_bytes(record.headers) <= HEAD_BYTES else []
    headers = [*original, *place, *((name, text.encode()) for name, text in facts.items())]
    return Letter(key, (record.value or b"")[:HEAD_BYTES], headers)


async def send(publisher: Publisher, topic: Topic, record: Any, error: str, tries: int = 1) -> None:
    """Publish ``record`` of ``topic`` to its dead-letter topic, complete or as a stub, with the reason.

    Only after it returns, on acknowledgement, may the record's offset be committed. A topic without dead letters only
    has the record logged and counted.
    """
    log(record, error, tries)
    if not has_dead_letters(topic):
        count(topic)
        return
    place = place_headers(record, error, tries, now_ms())
    letter = letter_of(topic, record, place)
    try:
        await publisher.send(topic.name + SUFFIX, *letter)
    except (MessageSizeTooLargeError, RecordListTooLargeError) as refusal:
        await publisher.send(topic.name + SUFFIX, *stub_of(record, place, refusal_reason(refusal)))
    count(topic)


def refusal_reason(error: Exception) -> str:
    """Return the reason of a stub whose letter the broker refused as too large."""
    return f"the dead-letter topic took no letter of this size ({type(error).__name__}): see `dart-streams topics plan`"


def log(record: Any, error: str, tries: int) -> None:
    """Log a dead letter."""
    place = f"{record.topic}[{record.partition}]@{record.offset}"
    structlog.get_logger().error("dead letter", record=place, reason=error[:MAX_REASON], tries=tries)


def count(topic: Topic) -> None:
    """Count a dead letter of ``topic``."""
    create_counter(metrics.get_meter(names.METER), names.DEAD_LETTERS).add(1, {"topic": topic.name})
