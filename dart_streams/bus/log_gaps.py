"""Notices records that were removed before a consumer had read them: retention passed it, or somebody removed them.

The client says nothing: it goes on at the beginning of what is left.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata

from dart_streams.bus.clients import committed_within

Committed = Callable[
    [AIOKafkaConsumer, Iterable[TopicPartition]], Awaitable[Mapping[TopicPartition, OffsetAndMetadata]]
]


class LogGaps:
    """Compares what comes with what follows the last record, or the group's committed offset where that is newer."""

    def __init__(self, log: Any, committed: Committed = committed_within) -> None:
        self.log = log
        self.committed = committed
        self.next: dict[TopicPartition, int] = {}

    async def check(self, records: AIOKafkaConsumer, partition: TopicPartition, first: int, last: int) -> None:
        """Note that the records from ``first`` to ``last`` have come; log which were removed before them."""
        due, self.next[partition] = self.next.get(partition), last + 1
        if due is not None and first <= due:
            return
        try:
            found = await self.committed(records, [partition])
        except KafkaError:
            return
        known = [offset for offset in (due, *(one.offset for one in found.values())) if offset is not None]
        if known and first > (begin := max(known)):
            gone = f"{partition.topic}[{partition.partition}]@{begin} to {first - 1}"
            effect = "orders that can never end are found and ordered again"
            self.log.warning("records gone before they were read", records=gone, effect=effect)
