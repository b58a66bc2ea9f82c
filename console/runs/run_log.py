"""Reads a run's log from the broker or a bundle; of large events only headers are decoded."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
from kafka import TopicPartition

from console.runs.bundle import Bundle, BundleRecord
from dart_streams.bus import sync_clients
from dart_streams.bus.codec import Header, Undecodable, check_size, decode, decode_json
from dart_streams.config import Bus
from dart_streams.errors import UserError
from topics import BY_NAME, Topic, actions, observations
from topics.values import BlobRef, EpochMs, Milliseconds, Name, OutcomeKind, Purpose, Reward, Steps

T = TypeVar("T")


class RecordMetadata(msgspec.Struct, frozen=True, gc=False):
    """Place of a record, and its time in epoch milliseconds."""

    topic: str
    partition: int
    offset: int
    at_ms: int


class OrderHeader(msgspec.Struct, frozen=True, gc=False):
    """The part of an observation's order that is decoded."""

    order_id: Name
    purpose: Purpose
    task_id: Name = ""


class ActionTimes(msgspec.Struct, frozen=True, gc=False):
    """The part of an observation's action that is decoded: times, and canonical form (null without one)."""

    queue_ms: Milliseconds
    generate_ms: Milliseconds
    execute_ms: Milliseconds
    action: str | None = None


class EndHeader(msgspec.Struct, frozen=True, gc=False):
    """The part of an observation's end that is decoded."""

    kind: OutcomeKind
    reward: Reward | None = None
    reason: str = ""


class ObservationHeader(msgspec.Struct, frozen=True, gc=False):
    """An observation without tokens, log-probabilities and texts."""

    trajectory_id: Name
    order: OrderHeader
    step: Steps
    end: EndHeader | None
    env_host: Name
    at_ms: EpochMs
    taken: ActionTimes | None = None
    screenshot: BlobRef | None = None
    asks: Name | None = None


class ResponseHeader(msgspec.Struct, frozen=True, gc=False):
    """An action response without its tokens and texts; ``alive`` for a person's sign of life, which answers nothing."""

    worker_id: Name
    request_id: Name = ""
    generate_ms: Milliseconds = 0.0
    alive: bool = False


class LogRecord(NamedTuple):
    """A record's metadata, its event (or the event's header), and its bytes."""

    metadata: RecordMetadata
    event: Any
    value: bytes = b""


HEADERS: dict[str, msgspec.json.Decoder[Any]] = {
    observations.TOPIC.name: msgspec.json.Decoder(ObservationHeader),
    actions.TOPIC.name: msgspec.json.Decoder(ResponseHeader),
}


def log_record(topic: str, record: BundleRecord) -> LogRecord:
    """Decode a record of ``topic`` (without prefix); raise :class:`Undecodable` if it is not an event of the topic."""
    metadata = RecordMetadata(topic, record.partition, record.offset, record.at_ms)
    return LogRecord(metadata, event_of(topic, record), record.value or b"")


def event_of(topic: str, record: BundleRecord) -> Any:
    """Return a record's event or header; raise as :func:`log_record`."""
    if topic not in HEADERS:
        return full_event(topic, record)
    contract = BY_NAME[topic]
    return decode_json(contract, HEADERS[topic], check_size(contract, record.value, headers_of(record)))


def full_event(topic: str, record: BundleRecord) -> Any:
    """Return a record's event, decoded in full; raise as :func:`log_record`."""
    return decode(BY_NAME[topic], record.value, headers_of(record))


def headers_of(record: BundleRecord) -> list[Header]:
    """Return the headers that have a value."""
    return [(name, value) for name, value in record.headers if value is not None]


def read_log(source: Bus | Bundle, topics: Sequence[Topic]) -> Iterator[LogRecord]:
    """Yield the records of the existing ``topics``, without undecodable ones, which are dead letters.

    Raises UserError if the broker has none of the topics, ServiceUnavailable if it does not answer, and BundleError if
    the bundle is damaged.
    """
    return decode_records(source, topics, log_record)


def read_events(source: Bus | Bundle, topics: Sequence[Topic]) -> Iterator[Any]:
    """Yield the whole events of the existing ``topics``; raise as :func:`read_log`."""
    return decode_records(source, topics, full_event)


def decode_records(
    source: Bus | Bundle, topics: Sequence[Topic], decoded: Callable[[str, BundleRecord], T]
) -> Iterator[T]:
    """Yield the topics' decodable records, in order within a partition."""
    for topic in existing_topics(source, topics):
        records = source.records(topic.name) if isinstance(source, Bundle) else present_records(source, topic)
        for record in records:
            with contextlib.suppress(Undecodable):
                yield decoded(topic.name, record)


def existing_topics(source: Bus | Bundle, topics: Sequence[Topic]) -> list[Topic]:
    """Return the existing topics; raise :class:`UserError` if the broker has none of them."""
    if isinstance(source, Bundle):
        return [topic for topic in topics if source.has(topic.name)]
    with contextlib.closing(sync_clients.create_consumer(source, "history")) as client:
        there = sync_clients.ask_until_answered(client.topics, source)
    existing = [topic for topic in topics if source.prefix + topic.name in there]
    if not existing:
        raise UserError(
            f"the broker at {source.servers} has no topics {source.prefix}*: is this the run, and the broker it used?"
        )
    return existing


def present_records(bus: Bus, topic: Topic, since_ms: int = 0, newest: int = 0) -> Iterator[BundleRecord]:
    """Yield a topic's present records, from a time on (epoch ms) or the ``newest`` of each partition, by default all.

    Raises as :func:`read_log`.
    """
    with sync_clients.TopicReader(bus, "history", topic, fetch_max_bytes=8 << 20, max_poll_records=2000) as reader:
        ends = reader.end_offsets()
        if since_ms:
            wanted = dict.fromkeys(reader.partitions, since_ms)
            for partition, place in reader.client.offsets_for_times(wanted).items():
                reader.client.seek(partition, ends[partition] if place is None else place.offset)
        for partition, begin in reader.client.beginning_offsets(reader.partitions).items() if newest else ():
            reader.client.seek(partition, max(begin, ends[partition] - newest))
        for record in reader.read_to_end({partition: end for partition, end in ends.items() if end}):
            if record.offset < ends[TopicPartition(record.topic, record.partition)]:
                yield BundleRecord.of(record)
