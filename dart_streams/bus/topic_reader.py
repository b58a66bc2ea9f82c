"""Reads whole topics from their beginning, without a consumer group."""

import contextlib
from collections.abc import AsyncIterator, Mapping

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from dart_streams.bus.clients import Publisher, consumer, start_within
from dart_streams.config import Bus
from topics import Topic

POLL_MS = 200
FETCH_BYTES = 1 << 20
FETCH_MS = 400
"""A fetch waits this long for :data:`FETCH_BYTES`, or each new record would cost the broker a fetch of its own."""


@contextlib.asynccontextmanager
async def reading(bus: Bus, publisher: Publisher, topics: tuple[Topic, ...]) -> AsyncIterator[AIOKafkaConsumer]:
    """Yield a consumer at the beginning of all partitions of ``topics``; ``publisher`` has their metadata.

    Raises
    ------
    ServiceUnavailable
        If there is no broker, or it lacks the topics.
    """
    records = consumer(bus, group=None, client_id="watch", fetch_min_bytes=FETCH_BYTES, fetch_max_wait_ms=FETCH_MS)
    await start_within(records, bus)
    try:
        partitions = [
            TopicPartition(bus.prefix + topic.name, number)
            for topic in topics
            for number in range(await publisher.partitions_of(topic))
        ]
        records.assign(partitions)
        await records.seek_to_beginning(*partitions)
        yield records
    finally:
        await records.stop()


async def read_to_end(
    records: AIOKafkaConsumer, max_records: int | None = None
) -> AsyncIterator[dict[TopicPartition, list[ConsumerRecord]]]:
    """Yield polls (at most ``max_records`` each) of the assigned partitions up to their present end offsets."""
    ends = await records.end_offsets(sorted(records.assignment()))
    while not await reached(records, ends):
        yield await records.getmany(timeout_ms=POLL_MS, max_records=max_records)


async def reached(records: AIOKafkaConsumer, ends: Mapping[TopicPartition, int]) -> bool:
    """Return whether the consumer's position is at or past these end offsets, in all partitions."""
    return all([await records.position(partition) >= end for partition, end in ends.items()])
