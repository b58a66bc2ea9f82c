"""The synchronous reader on a real broker starts at its offsets, and replaces a stuck client."""

import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from kafka.errors import KafkaTimeoutError

from dart_streams.bus import sync_clients
from dart_streams.bus.sync_clients import TopicReader
from dart_streams.config import Bus
from dart_streams.errors import ServiceUnavailable
from topics import curated

DEADLINE_S = 120.0


def write(bus: Bus, values: range) -> None:
    producer = sync_clients.create_producer(bus, "test")
    for value in values:
        producer.send(bus.prefix + curated.TOPIC.name, str(value).encode(), partition=0).get(timeout=DEADLINE_S)
    producer.close()


def read(reader: TopicReader, until: Callable[[list[int]], bool]) -> list[int]:
    """Return the values read when ``until`` holds of them."""
    found: list[Any] = []
    deadline = time.monotonic() + DEADLINE_S
    while not until(found):
        assert time.monotonic() < deadline, found
        found += [int(record.value) for record in reader.poll(100)]
    return found


def test_it_starts_at_the_given_offsets(services):
    bus = services.config().bus
    write(bus, range(6))
    with TopicReader(bus, "test", curated.TOPIC) as reader:
        assert not reader.has_reached(reader.end_offsets())
        assert read(reader, lambda found: reader.has_reached(reader.end_offsets())) == list(range(6))
    with TopicReader(bus, "test", curated.TOPIC, {0: 4}) as reader:
        assert read(reader, lambda found: reader.has_reached(reader.end_offsets())) == [4, 5]


def test_a_client_that_stands_still_is_replaced_without_a_loss(services, monkeypatch):
    monkeypatch.setattr(sync_clients, "CHECK_INTERVAL_S", 0.5)
    bus = services.config().bus
    write(bus, range(5))
    with TopicReader(bus, "test", curated.TOPIC) as reader:
        assert read(reader, lambda found: len(found) == 5) == list(range(5))
        stuck = reader.client
        stuck.pause(*reader.partitions)
        write(bus, range(5, 10))
        assert read(reader, lambda found: len(found) == 5) == list(range(5, 10))
        assert reader.client is not stuck


def test_a_quiet_topic_keeps_its_client(services, monkeypatch):
    bus = services.config().bus
    write(bus, range(1))
    with TopicReader(bus, "test", curated.TOPIC) as reader:
        monkeypatch.setattr(sync_clients, "CHECK_INTERVAL_S", 0.1)
        assert read(reader, lambda found: len(found) == 1) == [0]
        client = reader.client
        for _ in range(5):
            assert reader.poll(200) == []
        assert reader.client is client


def test_a_broker_that_does_not_say_where_the_end_is_is_not_available(services, monkeypatch):
    """A cut network is a named error: the trainer reads to the end before it publishes."""
    with TopicReader(services.config().bus, "test", curated.TOPIC) as reader:
        reader.bus = msgspec.structs.replace(reader.bus, wait_s=1.0)
        monkeypatch.setattr(reader.client, "end_offsets", unanswered)
        with pytest.raises(ServiceUnavailable, match=r"no Kafka broker at .* after 1 s"):
            list(reader.read_to_end())


def unanswered(*_: Any) -> None:
    raise KafkaTimeoutError("Failed to get offsets by timestamps")


def test_a_topic_that_is_not_there_is_named_with_what_to_do(services, monkeypatch):
    create, bus = sync_clients.create_consumer, services.config().bus
    monkeypatch.setattr(sync_clients, "create_consumer", lambda _, name: create(bus, name))
    absent = msgspec.structs.replace(bus, prefix="absent.", wait_s=1.0)
    with pytest.raises(ServiceUnavailable, match="topics apply"):
        TopicReader(absent, "test", curated.TOPIC)
