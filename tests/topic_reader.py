"""A reader of one topic from its beginning, which waits for the records that a test is about."""

import asyncio
import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from aiokafka import ConsumerRecord
from kafka.admin import KafkaAdminClient

from dart_streams.bus import dead_letters
from dart_streams.bus.clients import create_consumer, event_of, start_within
from dart_streams.config import Config
from tests.waiting import wait_until
from topics import Topic

BOUND_S = 120.0
T = TypeVar("T")


def delete_topics(client: KafkaAdminClient, names: Sequence[str]) -> None:
    """Delete topics, and return once the broker's metadata, which lag behind, list them no more."""
    client.delete_topics([*names])
    wait_until(lambda: not set(names) & set(client.list_topics()), f"the end of {names}")


def add_partitions(client: KafkaAdminClient, partitions: int, *names: str) -> None:
    """Give topics more partitions, and return once the broker's metadata list them."""
    for name in names:
        client.create_partitions({name: partitions})
    wait_until(lambda: all(len(topic["partitions"]) == partitions for topic in client.describe_topics([*names])))


class TopicReader:
    """The records of a topic; ``suffix`` names a topic beside it, such as that of its dead letters."""

    def __init__(self, config: Config, topic: Topic, suffix: str = "") -> None:
        self.bus = config.bus
        self.topic = topic
        self.name = config.bus.prefix + topic.name + suffix
        self.records: list[ConsumerRecord] = []

    async def __aenter__(self) -> "TopicReader":
        group = {"group": uuid.uuid4().hex, "session_timeout_ms": 60_000}  # Put out, it would read all again.
        self.consumer = create_consumer(self.bus, client_id="test", **group)
        self.consumer.subscribe([self.name])
        await start_within(self.consumer, self.bus)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.consumer.stop()

    @property
    def events(self) -> list[Any]:
        """The events that were read."""
        return [event_of(self.topic, record) for record in self.records]

    async def until(self, enough: Callable[[list[Any]], T]) -> T:
        """Read on until ``enough(events)`` is true, and return it."""
        async with asyncio.timeout(BOUND_S):
            while not (result := enough(self.events)):
                self.records.append(await self.consumer.getone())
        return result

    async def count(self, number: int) -> list[ConsumerRecord]:
        """Read on until there are ``number`` records, and return them."""
        async with asyncio.timeout(BOUND_S):
            while len(self.records) < number:
                self.records.append(await self.consumer.getone())
        return self.records

    async def first(self, matching: Callable[[ConsumerRecord], bool] = lambda record: True) -> ConsumerRecord:
        """Read on until a record matches, and return it."""
        async with asyncio.timeout(BOUND_S):
            while not (self.records and matching(self.records[-1])):
                self.records.append(await self.consumer.getone())
        return self.records[-1]


async def read_dead_letters(config: Config, topic: Topic, count: int) -> list[ConsumerRecord]:
    """Wait for the first ``count`` dead letters of a topic."""
    async with TopicReader(config, topic, dead_letters.SUFFIX) as reader:
        return await reader.count(count)
