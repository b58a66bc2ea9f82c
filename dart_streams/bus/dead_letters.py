"""Dead letters: a record that cannot be processed goes to the dead-letter topic as it is, with the reason."""

import structlog
from aiokafka import ConsumerRecord
from opentelemetry import metrics

from dart_streams.bus.clients import Publisher
from dart_streams.bus.codec import Header
from dart_streams.bus.topology import DEAD_LETTERS as SUFFIX
from dart_streams.clock import now_ms
from dart_streams.telemetry import names
from topics import Topic

MAX_ERROR_LENGTH = 4000
"""Characters of a reason; the size of a dead letter's headers is bounded (``topology.HEADER_ROOM``)."""
ERROR = "dlq-error"
TOPIC = "dlq-topic"
PARTITION = "dlq-partition"
OFFSET = "dlq-offset"
TRIES = "dlq-tries"
AT_MS = "dlq-at-ms"


def place_headers(record: ConsumerRecord, error: str, tries: int, at_ms: int) -> list[Header]:
    """Return the headers with a dead letter's origin and reason."""
    fields = {ERROR: error[:MAX_ERROR_LENGTH], TOPIC: record.topic, PARTITION: record.partition, OFFSET: record.offset}
    fields |= {TRIES: tries, AT_MS: at_ms}
    return [(name, str(value).encode()) for name, value in fields.items()]


async def send(publisher: Publisher, topic: Topic, record: ConsumerRecord, error: str, tries: int = 1) -> None:
    """Publish ``record`` of ``topic`` to its dead-letter topic: value, key and headers as they are, and the reason.

    Returns when it is acknowledged; only then may the record's offset be committed.
    """
    place = f"{record.topic}[{record.partition}]@{record.offset}"
    structlog.get_logger().error("dead letter", record=place, reason=error, tries=tries)
    headers = [*record.headers, *place_headers(record, error, tries, now_ms())]
    await publisher.send(topic.name + SUFFIX, record.key, record.value, headers)
    metrics.get_meter(names.METER).create_counter(names.DEAD_LETTERS).add(1, {"topic": topic.name})
