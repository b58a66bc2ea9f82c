"""The lag of consumer groups: their coordinators are looked up once, and again when they have moved."""

from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError, UnknownTopicOrPartitionError
from aiokafka.structs import OffsetAndMetadata

from dart_streams.bus.lag import GroupProgress, Lag, LagReader
from dart_streams.config import Bus
from topics import rollout_orders

ORDERS = TopicPartition("dart.rollout-orders", 0)


class Broker:
    """A cluster with one group, whose coordinator alone knows its offsets."""

    def __init__(self) -> None:
        self.coordinator = 1
        self.looked_up = 0
        self.up = True
        self.partitions = 1
        self.begin, self.committed = 0, 3
        self.reader = LagReader(Bus(), self, self)  # type: ignore[arg-type]

    async def list_consumer_groups(self) -> list[tuple[str, str]]:
        if not self.up:
            raise KafkaConnectionError("away")
        return [("dart.env", "consumer"), ("another", "consumer")]

    async def find_coordinator(self, group: str) -> int:
        self.looked_up += 1
        return self.coordinator

    async def list_consumer_group_offsets(
        self, group: str, coordinator: int
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        return {ORDERS: OffsetAndMetadata(self.committed, "")} if coordinator == self.coordinator else {}

    async def describe_topics(self, topics: list[str]) -> list[dict[str, Any]]:
        partitions = [{"partition": number} for number in range(self.partitions)]
        return [{"topic": topic, "partitions": partitions} for topic in topics]

    async def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, self.begin)

    async def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 5)


BEHIND = [Lag("env", "rollout-orders", 0, 3, 5)]


async def test_a_coordinator_is_looked_up_once_and_again_when_it_has_moved():
    broker = Broker()
    assert [await broker.reader.read() for _ in range(3)] == [BEHIND] * 3
    assert broker.looked_up == 1
    broker.coordinator = 2
    assert [await broker.reader.read() for _ in range(2)] == [BEHIND] * 2
    assert broker.looked_up == 2


async def test_an_added_partition_counts_as_lag_and_a_gone_topic_has_none():
    broker = Broker()
    broker.partitions = 2
    assert await broker.reader.read() == [*BEHIND, Lag("env", "rollout-orders", 1, 0, 5)]
    broker = Broker()
    broker.partitions = 0
    with pytest.raises(UnknownTopicOrPartitionError):
        await broker.reader.progress("env", rollout_orders.TOPIC)


async def test_lag_is_unknown_while_the_broker_is_down():
    broker = Broker()
    await broker.reader.read()
    broker.up = False
    assert await broker.reader.read() is None
    broker.up = True
    assert await broker.reader.read() == BEHIND
    assert broker.looked_up == 2


async def test_progress_ignores_an_offset_beyond_the_end():
    for begin, committed, expected in ((0, 3, 3), (4, 3, 4), (5, 3, 5), (0, 5, 5), (0, 6, 0), (2, 900, 2)):
        broker = Broker()
        broker.begin, broker.committed = begin, committed
        assert await broker.reader.progress("env", rollout_orders.TOPIC) == {0: GroupProgress(expected, 5)}
