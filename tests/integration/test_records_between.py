"""The records of a partition between two offsets are read from a broker."""

import pytest
from kafka import TopicPartition

from dart_streams.bus import admin
from dart_streams.bus.clients import Publisher
from dart_streams.bus.codec import Encoded
from dart_streams.config import Bus
from topics import rollout_budgets
from workers.curator.journal_writer import read_from

NAME = rollout_budgets.TOPIC.name
RECORDS = 3000
"""More than one poll returns."""


@pytest.fixture
async def bus(services) -> Bus:
    bus = services.config().bus
    async with Publisher(bus, "test") as publisher:
        await publisher.send_all(NAME, [Encoded(b"key", b"%d" % number, []) for number in range(RECORDS)])
    return bus


async def values(bus: Bus, *offsets: int) -> list[int]:
    return [int(record.value) for record in await read_from(bus, bus.prefix + NAME, 0, *offsets)]


async def test_the_records_of_a_range_of_offsets_are_read_and_no_others(bus):
    assert await values(bus, 0, 1) == [0]
    assert await values(bus, 7, 12) == [7, 8, 9, 10, 11]
    assert await values(bus, 2990, RECORDS) == [*range(2990, RECORDS)]
    assert await values(bus, 2990) == [*range(2990, RECORDS)]


async def test_what_the_topic_has_not_any_more_is_left_out(bus):
    with admin.connect(bus) as client:
        client.delete_records({TopicPartition(bus.prefix + NAME, 0): 10})
    assert await values(bus, 5, 12) == [10, 11]
    assert await values(bus, 0, 10) == []
