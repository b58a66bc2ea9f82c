"""A broker that enforces ACLs: each process has a login of its own, and no right but those that it needs."""

import asyncio
import contextlib
import itertools
from collections.abc import Mapping

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import GroupAuthorizationFailedError, KafkaError, TopicAuthorizationFailedError

from console.cli.topics import specs_of
from console.launch import access_rights
from dart_streams.bus import admin
from dart_streams.bus.admin import TopicsRefused
from dart_streams.bus.clients import create_consumer
from dart_streams.config import Bus, Config
from dart_streams.connection import auth
from tests.integration.secured import Secured
from topics import BY_NAME

pytestmark = pytest.mark.timeout(600)
BOUND_S = 120.0
WORKERS = ("env", "rollout", "recorder", "curator", "trainer", "monitor")


@pytest.fixture(scope="module")
def granted(secured: Secured, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A deployment whose topics are there, made with the login ``run``."""
    config = Config(bus=secured.bus_of("run", "acls."))
    secured.give_rights(config, tmp_path_factory.mktemp("granted") / "config.toml")
    admin.apply_all(config.bus, specs_of(config)[len(BY_NAME) :])
    return config


async def written(bus: Bus, names: list[str]) -> set[str]:
    """Return the topics for which the broker takes a record from this login."""
    producer, taken = AIOKafkaProducer(**auth.kafka_arguments(bus), acks="all"), set()
    await producer.start()
    try:
        for name in names:
            with contextlib.suppress(TopicAuthorizationFailedError):
                async with asyncio.timeout(BOUND_S):
                    await producer.send_and_wait(name, b"{}", b"key", 0)
                taken.add(name)
    finally:
        await producer.stop()
    return taken


async def read(bus: Bus, names: list[str]) -> set[str]:
    """Return the topics whose records the broker gives to this login; one that it does not show can't be read."""
    consumer, given = AIOKafkaConsumer(**auth.kafka_arguments(bus), auto_offset_reset="earliest"), set()
    await consumer.start()
    try:
        for name in sorted(await consumer.topics() & set(names)):
            consumer.assign([TopicPartition(name, 0)])
            with contextlib.suppress(TopicAuthorizationFailedError):
                async with asyncio.timeout(BOUND_S):
                    await consumer.getone()
                given.add(name)
    finally:
        await consumer.stop()
    return given


async def allowed(bus: Bus, names: list[str]) -> Mapping[str, set[str]]:
    """Return the topics that a login may write, and those that it may read."""
    return {"Write": await written(bus, names), "Read": await read(bus, names)}


async def fill(bus: Bus, names: list[str]) -> None:
    """Write a record to each topic, for those that may read it."""
    producer = AIOKafkaProducer(**auth.kafka_arguments(bus))
    await producer.start()
    for name in names:
        await producer.send_and_wait(name, b"{}", b"key", 0)
    await producer.stop()


@pytest.fixture(scope="module")
def names(granted: Config) -> list[str]:
    found = [spec.name for spec in specs_of(granted)]
    asyncio.run(fill(granted.bus, found))
    return found


@pytest.mark.parametrize("kind", [*WORKERS, "ui", *access_rights.PEOPLE])
async def test_a_process_may_use_its_topics_and_no_other(
    secured: Secured, granted: Config, names: list[str], kind: str
):
    rights = access_rights.rights_of(kind, granted, f"dart-{kind}")
    found = await allowed(secured.bus_of(kind, granted.bus.prefix), names)
    for operation in ("Read", "Write"):
        named = [right for right in rights if right.resource == "topic" and operation in right.operations]
        assert found[operation] == {
            name
            for name, right in itertools.product(names, named)
            if name == right.name or (right.pattern == "prefixed" and name.startswith(right.name))
        }


async def test_no_process_joins_the_group_of_another(secured: Secured, granted: Config):
    bus = secured.bus_of("rollout", granted.bus.prefix)
    consumer = create_consumer(bus, BY_NAME["action-requests"], group="env", client_id="thief")
    try:
        with pytest.raises(GroupAuthorizationFailedError):
            async with asyncio.timeout(BOUND_S):
                await consumer.start()
    finally:
        with contextlib.suppress(KafkaError):
            await consumer.stop()


def test_rights_reach_no_topic_of_another_deployment(secured: Secured, granted: Config):
    other = "other.observations"
    with admin.connect(secured.operator) as client:
        client.create_topics({other: {"num_partitions": 1, "replication_factor": 1}})
        client.wait_for_topics([other])
    for kind in access_rights.KINDS:
        if kind != "tracker":
            found = asyncio.run(allowed(secured.bus_of(kind, granted.bus.prefix), [other]))
            assert found == {"Write": set(), "Read": set()}


def test_a_login_without_the_right_to_configurations_reads_its_name(granted: Config, secured: Secured):
    with pytest.raises(TopicsRefused, match=r"acls\.actions.*: grant DescribeConfigs"):
        admin.apply_all(secured.bus_of("ui", "acls."))
