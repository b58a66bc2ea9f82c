"""Notices records that were removed before a consumer had read them: retention passed it, or somebody removed them.

The client says nothing: it goes on at the beginning of what is left.
"""

from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError


class LogGaps:
    """Compares what comes with what follows the last record, or the group's committed offset where that is newer."""

    def __init__(self, log: Any) -> None:
        self.log = log
        self.next: dict[TopicPartition, int] = {}

    async def check(self, records: AIOKafkaConsumer, partition: TopicPartition, first: int, last: int) -> None:
        """Note that the records from ``first`` to ``last`` have come; log which were removed before them."""
        due, self.next[partition] = self.next.get(partition), last + 1
        if due is not None and first <= due:
            return
        try:
            committed = await records.committed(partition)
        except KafkaError:
            return
        begin = max(due or 0, committed or 0)
        if (due is not None or committed is not None) and first > begin:
            gone = f"{partition.topic}[{partition.partition}]@{begin} to {first - 1}"
            effect = "orders that can never end are found and ordered again"
            self.log.warning("records gone before they were read", records=gone, effect=effect)
