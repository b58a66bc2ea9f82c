"""Keeps aiokafka's idempotent producer usable after a broker refuses a batch for its size or time.

aiokafka (0.14) keeps the sequence numbers of a refused batch, so every later record of the partition is refused as out
of order. It also requests response versions without the broker's message, although it can parse the next one.
"""

from collections.abc import Iterator
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import InvalidTimestampError, KafkaError, MessageSizeTooLargeError, RecordListTooLargeError
from aiokafka.producer import sender
from aiokafka.protocol.produce import ProduceRequest, ProduceRequest_v8

REFUSALS: dict[int, type[KafkaError]] = {
    error.errno: error for error in (MessageSizeTooLargeError, RecordListTooLargeError, InvalidTimestampError)
}
WITH_MESSAGE = 8
"""First response version with the broker's message (KIP-467)."""


class SendHandler(sender.SendProduceReqHandler):
    """Handles the response to a produce request."""

    def handle_response(self, response: Any) -> None:
        """Release the sequence numbers of refused batches, and fail them with the broker's message."""
        numbers = self._sender._txn_manager
        for place, error in find_refusals(response):
            if (batch := self._batches.get(place)) is not None:
                if numbers is not None:
                    numbers.increment_sequence_number(place, -batch.record_count)
                batch.failure(exception=error)
        super().handle_response(response)


def find_refusals(response: Any) -> Iterator[tuple[TopicPartition, KafkaError]]:
    """Yield the partitions of refused batches, with the error."""
    for topic, partitions in response.topics:
        for partition, code, *rest in partitions:
            if code in REFUSALS:
                message = message_of(response, rest)
                yield TopicPartition(topic, partition), REFUSALS[code](message) if message else REFUSALS[code]()


def message_of(response: Any, rest: list[Any]) -> str:
    """Return the broker's message about the first refused record or the batch; empty if there is none."""
    if response.API_VERSION < WITH_MESSAGE:
        return ""
    *_, records, message = rest
    return next((text for _, text in records if text), None) or message or ""


def install() -> None:
    """Apply this handling to every aiokafka producer of the process, by replacing names: there is no hook."""
    sender.SendProduceReqHandler = SendHandler
    if ProduceRequest_v8 not in ProduceRequest._CLASSES:
        ProduceRequest._CLASSES = (*ProduceRequest._CLASSES, ProduceRequest_v8)
