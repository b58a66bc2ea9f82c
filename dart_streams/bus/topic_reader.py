"""Reads whole topics from their beginning, without a consumer group."""

import contextlib
from collections.abc import AsyncIterator

from aiokafka import AIOKafkaConsumer, TopicPartition

from dart_streams.bus.clients import Publisher, consumer, start_within
from dart_streams.config import Bus
from topics import Topic

POLL_MS = 200
FETCH_BYTES = 1 << 20
FETCH_MS = 400
"""A fetch waits so long for so much: who only watches would otherwise ask the broker anew for every single record."""


@contextlib.asynccontextmanager
async def reading(bus: Bus, publisher: Publisher, topics: tuple[Topic, ...]) -> AsyncIterator[AIOKafkaConsumer]:
    """Yield a consumer at the beginning of ``topics``; ``publisher`` knows their partitions.

    Raises
    ------
    ServiceUnavailable
        If there is no broker, or the topics are not there.
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
