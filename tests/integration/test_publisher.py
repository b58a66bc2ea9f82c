"""Records sent in batches lie on the broker as those sent one by one do."""

import asyncio
import functools
from collections import defaultdict

import pytest
from aiokafka.errors import InvalidTimestampError, MessageSizeTooLargeError

from console.runs.run_log import present_records
from dart_streams.bus import admin, clients, sync_clients
from dart_streams.bus.clients import Publisher, partition_of
from dart_streams.bus.clock_refusal import ClockRefused
from dart_streams.bus.codec import MAX_HEADER_BYTES, Encoded
from dart_streams.bus.topology import Change
from dart_streams.clock import now_ms
from topics import observations
from topics.topic import HOUR_MS

NAME = observations.TOPIC.name
PARTITIONS = observations.TOPIC.partitions
BOUND_S = 120.0


def records(number: int) -> list[Encoded]:
    return [
        Encoded(f"key-{index % 7}".encode(), f"{index}".encode() * (index % 50 + 1), [("id", f"{index}".encode())])
        for index in range(number)
    ]


async def read(bus) -> dict[int, list[Encoded]]:
    """Return the records of each partition, in order."""
    by_partition: dict[int, list[Encoded]] = defaultdict(list)
    for record in await asyncio.to_thread(list, present_records(bus, observations.TOPIC)):
        by_partition[record.partition].append(Encoded(record.key, record.value, record.headers))
    return by_partition


@pytest.fixture
def bus(services):
    return services.config().bus


async def test_batches_have_the_partitions_and_order_of_single_records(bus):
    sent = records(600)
    async with Publisher(bus, "test", batch_bytes=4096) as publisher:
        for record in sent:
            await publisher.producer.send(bus.prefix + NAME, record.value, key=record.key, headers=record.headers)
        await publisher.send_all(NAME, sent)
    by_partition = await read(bus)
    assert sum(map(len, by_partition.values())) == 2 * len(sent)
    assert len(by_partition) > 1
    for own in by_partition.values():
        assert own[: len(own) // 2] == own[len(own) // 2 :]


async def test_a_record_larger_than_a_batch_goes_alone_and_in_its_turn(bus):
    sent = [Encoded(b"key", value, []) for value in (b"first", b"x" * 20_000, b"last")]
    async with Publisher(bus, "test", batch_bytes=4096) as publisher:
        await publisher.send_all(NAME, sent)
    assert list((await read(bus)).values()) == [sent]


async def grow(partitions: int, *publishers: Publisher) -> None:
    """Give the topic partitions, and return when these producers know."""
    bus = publishers[0].bus
    with admin.connect(bus) as client:
        client.create_partitions({bus.prefix + NAME: partitions})
    async with asyncio.timeout(BOUND_S):
        for publisher in publishers:
            while (await publisher.partition_counts([NAME]))[NAME] < partitions:
                pass  # each look asks the broker


async def test_a_key_keeps_its_partition_when_its_topic_is_given_partitions(bus):
    sent, number = records(70), 2 * PARTITIONS
    async with Publisher(bus, "single") as single, Publisher(bus, "packed") as packed:
        await asyncio.gather(packed.send_all(NAME, sent), *(single.send(NAME, *record) for record in sent))
        await grow(number, single, packed)
        await asyncio.gather(packed.send_all(NAME, sent), *(single.send(NAME, *record) for record in sent))
        by_partition = await read(bus)
        assert max(by_partition) < PARTITIONS
        assert sum(map(len, by_partition.values())) == 4 * len(sent)
        places = {(record.key, partition) for partition, own in by_partition.items() for record in own}
        assert len(places) == len({key for key, _ in places}) > 1
    async with Publisher(bus, "later") as later:
        await later.send_all(NAME, records(700))
    assert max(await read(bus)) >= PARTITIONS


async def test_nothing_is_sent_of_no_records(bus):
    async with Publisher(bus, "test") as publisher:
        await publisher.send_all(NAME, [])
        await publisher.send_all(NAME, records(1))
    assert [len(own) for own in (await read(bus)).values()] == [1]


async def test_records_that_the_broker_refuses_are_an_error(bus):
    too_large = Encoded(b"key", b"x" * (2 * observations.TOPIC.max_message_bytes), [])
    async with Publisher(bus, "test") as publisher:
        with pytest.raises(MessageSizeTooLargeError):
            await publisher.send_all(NAME, [too_large])


async def alter(bus, configs: dict[str, str]) -> None:
    change = Change(topic=bus.prefix + NAME, action="alter", before={}, after=configs)
    with admin.connect(bus) as client:
        await asyncio.to_thread(admin.apply, client, [change])


async def test_a_producer_goes_on_after_a_record_that_the_broker_has_refused(bus):
    """The broker refuses records that are too large or of a wrong time, alone and among others."""
    await alter(bus, {"max.message.bytes": "4000"})
    now = now_ms()
    async with Publisher(bus, "test") as publisher:
        await publisher.send(NAME, b"key", b"first", [])
        with pytest.raises(MessageSizeTooLargeError):
            await publisher.send(NAME, b"key", b"x" * 5000, [])
        await publisher.send(NAME, b"key", b"second", [])
        for off_ms in (2 * HOUR_MS, -2 * HOUR_MS):
            with pytest.raises(InvalidTimestampError, match="out of range"):
                await publisher.producer.send_and_wait(
                    bus.prefix + NAME, b"odd", b"key", partition_of(b"key", range(4), range(4)), now + off_ms
                )
        with pytest.raises(MessageSizeTooLargeError):
            await publisher.send_all(NAME, [Encoded(b"key", b"x" * 5000, []), Encoded(b"key", b"y" * 5000, [])])
        await publisher.send_all(NAME, [Encoded(b"key", b"third", []), Encoded(b"key", b"last", [])])
    [own] = (await read(bus)).values()
    assert [record.value for record in own] == [b"first", b"second", b"third", b"last"]


@pytest.mark.parametrize(
    ("off_s", "said"),
    [(7200, "2 h ahead of the broker's; at most 1 h is taken"), (-90_000, "1 d 1 h behind the broker's; at most 1 h")],
)
async def test_a_clock_that_the_broker_refuses_is_named_with_its_offset(bus, monkeypatch, off_s, said):
    monkeypatch.setattr(clients, "now_ms", lambda: now_ms() + 1000 * off_s)
    async with Publisher(bus, "test") as publisher:
        send = publisher.producer.send_and_wait
        stamped = functools.partial(send, timestamp_ms=now_ms() + 1000 * off_s)
        monkeypatch.setattr(publisher.producer, "send_and_wait", stamped)
        with pytest.raises(ClockRefused, match=said):
            await publisher.send(NAME, b"key", b"value", [])


async def test_a_record_that_waited_while_the_machine_slept_is_stamped_anew(bus, monkeypatch):
    async with Publisher(bus, "test") as publisher:
        send, times = publisher.producer.send_and_wait, iter([now_ms() - 9 * HOUR_MS, None])
        monkeypatch.setattr(
            publisher.producer, "send_and_wait", lambda *parts, **more: send(*parts, timestamp_ms=next(times), **more)
        )
        await publisher.send(NAME, b"key", b"value", [])
    assert [len(own) for own in (await read(bus)).values()] == [1]


async def test_the_largest_record_passes_and_is_read_by_either_client(bus):
    topic = observations.TOPIC
    value = b"x" * topic.max_message_bytes
    headers = [("x", b"h" * (MAX_HEADER_BYTES - 1))]
    async with Publisher(bus, "test") as publisher:
        await publisher.send(NAME, b"k" * 2048, value, headers)
        await publisher.send_all(NAME, [Encoded(b"k" * 2048, value, headers)])
    [own] = (await read(bus)).values()
    assert [len(record.value) for record in own] == [topic.max_message_bytes] * 2

    def read_again() -> list[int]:
        with sync_clients.TopicReader(bus, "reader", topic) as reader:
            return [len(record.value) for record in reader.read_to_end()]

    assert await asyncio.to_thread(read_again) == [topic.max_message_bytes] * 2
