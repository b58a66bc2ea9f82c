"""How far each consumer group of a run is behind."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from dart_streams.bus.clients import consumer, start_within
from dart_streams.config import Bus
from dart_streams.connection import auth


class Lag(msgspec.Struct, frozen=True):
    """A group's place in a partition: it has done everything below ``committed``, of ``end`` records."""

    group: str
    topic: str
    partition: int
    committed: int
    end: int

    @property
    def records(self) -> int:
        """Records still to do."""
        return max(0, self.end - self.committed)


class LagReader:
    """Asks a broker for the lag of a run's groups; use :func:`lag_reader` to make one."""

    def __init__(self, bus: Bus, admin: AIOKafkaAdminClient, ends: AIOKafkaConsumer) -> None:
        self.bus = bus
        self.admin = admin
        self.ends = ends

    async def read(self) -> list[Lag]:
        """Return the lag of every group of this run, a partition each; nothing while the broker is away."""
        try:
            names = [name for name, *_ in await self.admin.list_consumer_groups() if name.startswith(self.bus.prefix)]
            committed = {name: await self.admin.list_consumer_group_offsets(name) for name in names}
            partitions: set[TopicPartition] = {partition for offsets in committed.values() for partition in offsets}
            ends = await self.ends.end_offsets(sorted(partitions)) if partitions else {}
        except (KafkaError, OSError):
            return []
        return [
            Lag(
                name.removeprefix(self.bus.prefix),
                partition.topic.removeprefix(self.bus.prefix),
                partition.partition,
                max(0, place.offset),
                ends.get(partition, 0),
            )
            for name, offsets in committed.items()
            for partition, place in sorted(offsets.items())
        ]


@asynccontextmanager
async def lag_reader(bus: Bus) -> AsyncIterator[LagReader]:
    """Yield a reader with connections of its own."""
    ends = consumer(bus, group=None, client_id="lag")
    await start_within(ends, bus)
    admin = AIOKafkaAdminClient(**auth.kafka(bus), client_id="lag")
    try:
        await admin.start()
        yield LagReader(bus, admin, ends)
    finally:
        await admin.close()
        await ends.stop()


def by_group(lags: list[Lag]) -> dict[tuple[str, str], int]:
    """Sum up the partitions: records still to do by (group, topic)."""
    result: dict[tuple[str, str], int] = {}
    for lag in lags:
        result[lag.group, lag.topic] = result.get((lag.group, lag.topic), 0) + lag.records
    return result
