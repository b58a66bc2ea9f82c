"""Lag of a run's consumer groups: end offset minus committed offset."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError, UnknownTopicOrPartitionError
from aiokafka.structs import OffsetAndMetadata

from dart_streams.bus.clients import read_alone
from dart_streams.config import Bus
from dart_streams.connection import auth
from topics import Topic


class Lag(msgspec.Struct, frozen=True):
    """Committed and end offset of a group on one partition; names are without the prefix."""

    group: str
    topic: str
    partition: int
    committed: int
    end: int

    @property
    def records(self) -> int:
        """The lag in records."""
        return max(0, self.end - self.committed)


class GroupProgress(NamedTuple):
    """A group's processed offset and the end offset.

    ``processed`` is the committed offset, or the log's beginning if retention has passed it.
    """

    processed: int
    end: int


Offsets = Mapping[TopicPartition, OffsetAndMetadata]
NOTHING = OffsetAndMetadata(0, "")


class LagReader:
    """Reads the lag of a run's groups; see :func:`lag_reader`."""

    def __init__(self, bus: Bus, admin: AIOKafkaAdminClient, consumer: AIOKafkaConsumer) -> None:
        self.bus = bus
        self.admin = admin
        self.consumer = consumer
        self._coordinators: dict[str, int] = {}

    async def read(self) -> list[Lag] | None:
        """Return the lag of every group and partition; None if the broker does not answer."""
        prefix = self.bus.prefix
        try:
            groups = [name for name, *_ in await self.admin.list_consumer_groups() if name.startswith(prefix)]
            committed = await self._with_added({group: await self._committed(group) for group in groups})
            partitions: set[TopicPartition] = {partition for offsets in committed.values() for partition in offsets}
            ends = await self.consumer.end_offsets(sorted(partitions)) if partitions else {}
        except (KafkaError, OSError):
            self._coordinators.clear()
            return None
        return [
            Lag(
                group.removeprefix(prefix),
                partition.topic.removeprefix(prefix),
                partition.partition,
                max(0, metadata.offset),
                ends.get(partition, 0),
            )
            for group, offsets in committed.items()
            for partition, metadata in sorted(offsets.items())
        ]

    async def progress(self, group: str, topic: Topic) -> dict[int, GroupProgress]:
        """Return a group's progress on each partition of a topic; raise ``KafkaError`` if it is unknown.

        A committed offset beyond the end belongs to an earlier topic of this name and is ignored.
        """
        partitions = await self._partitions(topic)
        begins = await self.consumer.beginning_offsets(partitions)
        ends = await self.consumer.end_offsets(partitions)
        committed = await self._committed(self.bus.prefix + group)
        return {
            partition.partition: GroupProgress(max(begins[partition], offset if offset <= end else 0), end)
            for partition, end in ends.items()
            for offset in [committed.get(partition, NOTHING).offset]
        }

    async def _partitions(self, topic: Topic) -> list[TopicPartition]:
        name = self.bus.prefix + topic.name
        [described] = await self.admin.describe_topics([name])
        if not described["partitions"]:
            raise UnknownTopicOrPartitionError(name)
        return [TopicPartition(name, partition["partition"]) for partition in described["partitions"]]

    async def _with_added(self, committed: dict[str, Offsets]) -> dict[str, Offsets]:
        """Add partitions without committed offsets, whose records are lag as well."""
        topics = {partition.topic for offsets in committed.values() for partition in offsets}
        if not topics:
            return committed
        described = await self.admin.describe_topics(sorted(topics))
        numbers = {topic["topic"]: [entry["partition"] for entry in topic["partitions"]] for topic in described}
        return {
            group: {
                TopicPartition(topic, number): offsets.get(TopicPartition(topic, number), NOTHING)
                for topic in dict.fromkeys(partition.topic for partition in offsets)
                for number in numbers.get(topic, ())
            }
            for group, offsets in committed.items()
        }

    async def _committed(self, group: str) -> Offsets:
        """Return a group's offsets from its cached coordinator; a moved one knows none and is looked up again."""
        known = self._coordinators.pop(group, None)
        offsets = await self._offsets(group, known) if known is not None else {}
        return offsets or await self._offsets(group, await self.admin.find_coordinator(group))

    async def _offsets(self, group: str, coordinator: int) -> Offsets:
        offsets: Offsets = await self.admin.list_consumer_group_offsets(group, coordinator)
        if offsets:
            self._coordinators[group] = coordinator
        return offsets


@asynccontextmanager
async def lag_reader(bus: Bus) -> AsyncIterator[LagReader]:
    """Yield a reader with separate connections."""
    async with read_alone(bus, "lag") as records:
        admin = AIOKafkaAdminClient(**auth.kafka_arguments(bus), client_id="lag")
        try:
            await admin.start()
            yield LagReader(bus, admin, records)
        finally:
            await admin.close()


def by_group(lags: Sequence[Lag] | None) -> dict[tuple[str, str], int]:
    """Return the lag by (group, topic), summed over partitions; unknown lags are omitted."""
    result: dict[tuple[str, str], int] = {}
    for lag in lags or ():
        result[lag.group, lag.topic] = result.get((lag.group, lag.topic), 0) + lag.records
    return result
