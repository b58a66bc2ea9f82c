"""Many records at once lie on the broker as those sent one by one do."""

import asyncio
from collections import defaultdict

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import MessageSizeTooLargeError

from dart_streams.bus import admin
from dart_streams.bus.clients import Publisher, consumer, start_within
from dart_streams.bus.codec import Encoded
from topics import observations

NAME = observations.TOPIC.name
PARTITIONS = observations.TOPIC.partitions
BOUND_S = 120.0


def records(number: int) -> list[Encoded]:
    return [
        Encoded(f"key-{index % 7}".encode(), f"{index}".encode() * (index % 50 + 1), [("id", f"{index}".encode())])
        for index in range(number)
    ]


async def read(bus, number: int, partitions: int = PARTITIONS) -> dict[int, list[Encoded]]:
    """Return so many records, by partition, in order."""
    found: dict[int, list[Encoded]] = defaultdict(list)
    client = consumer(bus, group=None, client_id="reader")
    await start_within(client, bus)
    try:
        client.assign([TopicPartition(bus.prefix + NAME, partition) for partition in range(partitions)])
        await client.seek_to_beginning()
        async with asyncio.timeout(BOUND_S):
            while sum(map(len, found.values())) < number:
                for place, batch in (await client.getmany(timeout_ms=200)).items():
                    found[place.partition] += [Encoded(one.key, one.value, list(one.headers)) for one in batch]
    finally:
        await client.stop()
    return found


@pytest.fixture
def bus(services):
    return services.config().bus


async def test_many_records_sent_at_once_lie_in_the_same_partitions_and_order_as_single_ones(bus):
    sent = records(600)
    async with Publisher(bus, "test", batch_bytes=4096) as publisher:
        for record in sent:
            await publisher.producer.send(bus.prefix + NAME, record.value, key=record.key, headers=record.headers)
        await publisher.send_all(NAME, sent)
    found = await read(bus, 2 * len(sent))
    assert sum(len(own) > 0 for own in found.values()) > 1
    for own in found.values():
        assert own[: len(own) // 2] == own[len(own) // 2 :]


async def test_a_record_larger_than_a_batch_goes_alone_and_in_its_turn(bus):
    sent = [Encoded(b"key", value, []) for value in (b"first", b"x" * 20_000, b"last")]
    async with Publisher(bus, "test", batch_bytes=4096) as publisher:
        await publisher.send_all(NAME, sent)
    [own] = [own for own in (await read(bus, 3)).values() if own]
    assert own == sent


async def grow(partitions: int, *publishers: Publisher) -> None:
    """Give the topic partitions, and return when these producers know."""
    bus = publishers[0].bus
    with admin.connect(bus) as client:
        client.create_partitions({bus.prefix + NAME: partitions})
    async with asyncio.timeout(BOUND_S):
        for publisher in publishers:
            while (await publisher.partition_counts([NAME]))[NAME] < partitions:
                pass  # each look asks the broker


async def test_a_key_keeps_its_partition_when_its_topic_is_given_partitions_and_later_producers_use_them(bus):
    sent, number = records(70), 2 * PARTITIONS
    async with Publisher(bus, "single") as single, Publisher(bus, "packed") as packed:
        await asyncio.gather(packed.send_all(NAME, sent), *(single.send(NAME, *record) for record in sent))
        await grow(number, single, packed)
        await asyncio.gather(packed.send_all(NAME, sent), *(single.send(NAME, *record) for record in sent))
        found = await read(bus, 4 * len(sent), number)
        assert max(found) < PARTITIONS
        assert_one_partition_a_key(found)
    async with Publisher(bus, "later") as later:
        await later.send_all(NAME, records(700))
    assert max(await read(bus, 4 * len(sent) + 700, number)) >= PARTITIONS


def assert_one_partition_a_key(found: dict[int, list[Encoded]]) -> None:
    places = {(record.key, partition) for partition, own in found.items() for record in own}
    assert len(places) == len({key for key, _ in places}) > 1


async def test_nothing_is_sent_of_no_records(bus):
    async with Publisher(bus, "test") as publisher:
        await publisher.send_all(NAME, [])
        await publisher.send_all(NAME, records(1))
    assert sum(map(len, (await read(bus, 1)).values())) == 1


async def test_records_that_the_broker_refuses_are_an_error(bus):
    too_large = Encoded(b"key", b"x" * (2 * observations.TOPIC.max_message_bytes), [])
    async with Publisher(bus, "test") as publisher:
        with pytest.raises(MessageSizeTooLargeError):
            await publisher.send_all(NAME, [too_large])
