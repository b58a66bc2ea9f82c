"""Batches that a broker refuses, as too large or of a wrong time: the producer goes on, and has the broker's words.

An idempotent producer of aiokafka (0.14) numbers a batch when it sends it, and keeps the number of one that the broker
has not taken: every later record of the partition is then refused as out of order. It also has the broker's message
in none of the versions of the response that it asks for, though it can read the next one.
"""

from collections.abc import Iterator
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import (
    InvalidTimestampError,
    KafkaError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
)
from aiokafka.producer import sender
from aiokafka.protocol.produce import ProduceRequest, ProduceRequest_v8

REFUSALS: dict[int, type[KafkaError]] = {
    error.errno: error for error in (MessageSizeTooLargeError, RecordListTooLargeError, InvalidTimestampError)
}
"""Errors of a batch that the broker has checked and not taken."""
WITH_MESSAGE = 8
"""The version of the response that has the broker's message (KIP-467)."""


class SendHandler(sender.SendProduceReqHandler):
    """Handles the response to a produce request."""

    def handle_response(self, response: Any) -> None:
        """Give numbers of refused batches back, and fail them with the broker's message, before the rest is done."""
        numbers = self._sender._txn_manager
        for place, error in find_refusals(response):
            if (batch := self._batches.get(place)) is not None:
                if numbers is not None:
                    numbers.increment_sequence_number(place, -batch.record_count)
                batch.failure(exception=error)
        super().handle_response(response)


def find_refusals(response: Any) -> Iterator[tuple[TopicPartition, KafkaError]]:
    """Yield the partitions whose batch was refused, and why."""
    for topic, partitions in response.topics:
        for partition, code, *rest in partitions:
            if code in REFUSALS:
                message = message_of(response, rest)
                yield TopicPartition(topic, partition), REFUSALS[code](message) if message else REFUSALS[code]()


def message_of(response: Any, rest: list[Any]) -> str:
    """Return the broker's message about the first record that it refused, or about the batch; empty: it has none."""
    if response.API_VERSION < WITH_MESSAGE:
        return ""
    *_, records, message = rest
    return next((text for _, text in records if text), None) or message or ""


def install() -> None:
    """Have every producer of aiokafka in this process handle refused batches so. It has no hook: names are replaced."""
    sender.SendProduceReqHandler = SendHandler
    if ProduceRequest_v8 not in ProduceRequest._CLASSES:
        ProduceRequest._CLASSES = (*ProduceRequest._CLASSES, ProduceRequest_v8)
