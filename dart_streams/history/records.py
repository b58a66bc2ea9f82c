"""A record of a run's log, decoded once for every reader; of the many large events only a header. Pure."""

from typing import Any, NamedTuple

import msgspec

from dart_streams.bus.codec import Undecodable, decode
from dart_streams.history.bundle import BundleRecord
from topics import BY_NAME, actions, observations
from topics.observations import Observation
from topics.values import BlobRef, OutcomeKind, Purpose


class RecordMetadata(msgspec.Struct, frozen=True, gc=False):
    """Where a record lies, and when it was written (epoch milliseconds)."""

    topic: str
    partition: int
    offset: int
    at_ms: int


class OrderHeader(msgspec.Struct, frozen=True, gc=False):
    """What of an observation's order is read."""

    order_id: str
    purpose: Purpose
    task_id: str = ""


class ActionTimes(msgspec.Struct, frozen=True, gc=False):
    """What of an observation's action is read, in milliseconds."""

    queue_ms: float
    generate_ms: float
    execute_ms: float


class EndHeader(msgspec.Struct, frozen=True, gc=False):
    """What of an observation's end is read."""

    kind: OutcomeKind
    reward: float | None = None


class ObservationHeader(msgspec.Struct, frozen=True, gc=False):
    """An observation without tokens, log-probabilities and texts, which decoding skips."""

    trajectory_id: str
    order: OrderHeader
    step: int
    end: EndHeader | None
    env_host: str
    at_ms: int
    taken: ActionTimes | None = None
    screenshot: BlobRef | None = None


class ResponseHeader(msgspec.Struct, frozen=True, gc=False):
    """An action response without its tokens and texts."""

    worker_id: str
    request_id: str = ""
    generate_ms: float = 0.0


class LogRecord(NamedTuple):
    """A record: its metadata, its event (or the header of one), and its bytes."""

    metadata: RecordMetadata
    event: Any
    value: bytes = b""


HEADERS: dict[str, msgspec.json.Decoder[Any]] = {
    observations.TOPIC.name: msgspec.json.Decoder(ObservationHeader),
    actions.TOPIC.name: msgspec.json.Decoder(ResponseHeader),
}
_observation = msgspec.json.Decoder(Observation)


def log_record(topic: str, record: BundleRecord) -> LogRecord:
    """Decode a record of ``topic`` (without prefix); raise :class:`Undecodable` if it is none of its events."""
    metadata = RecordMetadata(topic, record.partition, record.offset, record.at_ms)
    return LogRecord(metadata, event_of(topic, record), record.value or b"")


def event_of(topic: str, record: BundleRecord) -> Any:
    """Return a record's event, or its header."""
    if topic not in HEADERS:
        return decode(BY_NAME[topic], record.value, headers_of(record))
    try:
        return HEADERS[topic].decode(record.value or b"")
    except msgspec.DecodeError as error:
        raise Undecodable(str(error)) from None


def full_observation(value: bytes) -> Observation:
    """Decode all of an observation of which the header has been read."""
    return _observation.decode(value)


def headers_of(record: BundleRecord) -> list[tuple[str, bytes]]:
    """Return the headers that have a value."""
    return [(name, value) for name, value in record.headers if value is not None]
