"""Dead letters through kafka-python, for the trainer."""

from typing import Any

from kafka import KafkaProducer
from kafka.errors import MessageSizeTooLargeError, RecordListTooLargeError

from dart_streams.bus.dead_letters import Letter, count, letter_of, log, place_headers, refusal_reason, stub_of
from dart_streams.bus.topology import DEAD_LETTERS
from dart_streams.clock import now_ms
from topics import Topic


def send(producer: KafkaProducer, topic: Topic, record: Any, error: str, timeout_s: float) -> None:
    """Do as :func:`dart_streams.bus.dead_letters.send` with a synchronous producer.

    ``producer`` must not be idempotent, or nothing could follow a refused letter.
    """
    log(record, error, tries=1)
    place = place_headers(record, error, 1, now_ms())
    letter = letter_of(topic, record, place)
    try:
        produce(producer, record.topic, letter, timeout_s)
    except (MessageSizeTooLargeError, RecordListTooLargeError) as refusal:
        produce(producer, record.topic, stub_of(record, place, refusal_reason(refusal)), timeout_s)
    count(topic)


def produce(producer: KafkaProducer, topic: str, letter: Letter, timeout_s: float) -> None:
    """Send a letter to the dead-letter twin of ``topic`` (with prefix); return on acknowledgement."""
    producer.send(topic + DEAD_LETTERS, **letter._asdict()).get(timeout=timeout_s)
