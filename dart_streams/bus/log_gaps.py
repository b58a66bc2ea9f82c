"""Detects records that were removed before a consumer read them, by retention or by hand.

The client does not report this: it continues at the beginning of the remaining log.
"""

from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from dart_streams.bus.clients import committed_within


class LogGaps:
    """Compares arriving offsets with the expected one: the next, or the group's committed offset if that is newer."""

    def __init__(self, log: Any) -> None:
        self.log = log
        self.next: dict[TopicPartition, int] = {}

    async def check(self, records: AIOKafkaConsumer, partition: TopicPartition, first: int, last: int) -> None:
        """Note that records ``first`` to ``last`` arrived; log records removed before them."""
        due, self.next[partition] = self.next.get(partition), last + 1
        if due is not None and first <= due:
            return
        try:
            committed = await committed_within(records, [partition])
        except KafkaError:
            return
        offsets = (due, *(metadata.offset for metadata in committed.values()))
        known = [offset for offset in offsets if offset is not None]
        if known and first > (begin := max(known)):
            gone = f"{partition.topic}[{partition.partition}]@{begin} to {first - 1}"
            effect = "lost orders are ordered again"
            self.log.warning("records gone before they were read", records=gone, effect=effect)
