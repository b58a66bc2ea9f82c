"""Dead letters are shown with their reasons, and are sent back unchanged, once."""

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from aiokafka import ConsumerRecord

from console.repair import dead_letters as letters
from console.runs.run_folder import write_toml
from console.runs.run_log import present_records
from dart_streams.bus import admin, dead_letters, sync_clients, sync_dead_letters
from dart_streams.bus.clients import Publisher
from dart_streams.bus.topology import Change
from dart_streams.config import Config
from dart_streams.errors import UserError
from tests.command_line import invoke, invoke_json
from topics import curated, trajectories


@pytest.fixture
def deployment(services, tmp_path: Path) -> tuple[Config, tuple[str, str]]:
    config = services.config()
    file = tmp_path / "config.toml"
    write_toml(file, config)
    return config, ("--config", str(file))


def put_aside(config: Config, *values: bytes | None) -> None:
    asyncio.run(send_all(config, values))


async def send_all(config: Config, values: Sequence[bytes | None]) -> None:
    name = config.bus.prefix + trajectories.TOPIC.name
    async with Publisher(config.bus, "test") as publisher:
        for number, value in enumerate(values):
            key = None if value is None else b"key"
            record = ConsumerRecord(name, 0, number, 1, 0, key, value, None, 3, len(value or b""), (("x", b"y"),))
            await dead_letters.send(publisher, trajectories.TOPIC, record, "not a trajectories/1: truncated")


def test_letters_are_listed_shown_and_sent_back_once(deployment):
    config, where = deployment
    put_aside(config, b"{", b"[]")
    (row,) = invoke_json("dlq", "list", *where)
    assert (row["topic"], row["letters"], row["reasons"]) == ("trajectories", 2, {"not a trajectories/1": 2})
    shown = invoke_json("dlq", "show", "trajectories.dlq", *where)
    values = [(letter["place"], letter["key"], letter["value"]) for letter in shown]
    assert values == [("0@0", "key", "{"), ("0@1", "key", "[]")]
    assert shown[1]["came_from"] == f"{config.bus.prefix}trajectories[0]@1"
    for identity, places in (("trajectories[0]@1", ["0@1"]), ("key", ["0@0", "0@1"]), ("trajectories[0]@7", [])):
        assert [letter.place for letter in letters.letters_about(config.bus, identity)] == places
    assert invoke_json("dlq", "redrive", "trajectories", "--at", "0@1", *where)[0]["outcome"].startswith("sent as ")
    outcomes = [
        row["outcome"].partition(" as ")[0] for row in invoke_json("dlq", "redrive", "trajectories", "--all", *where)
    ]
    assert outcomes == ["sent", "sent before"]
    back = list(present_records(config.bus, trajectories.TOPIC))
    assert [(record.key, record.value) for record in back] == [(b"key", b"[]"), (b"key", b"{")]
    assert back[0].headers == [("x", b"y"), (letters.REDRIVEN, b"0@1")]


async def send_raw(config: Config, topic: str, letters: Sequence[list[tuple[str, bytes]]]) -> None:
    async with Publisher(config.bus, "test") as publisher:
        for found in letters:
            await publisher.producer.send_and_wait(
                config.bus.prefix + topic, b"{}", key=b"k", partition=0, headers=found
            )


def test_letters_of_any_form_cost_themselves_only(deployment):
    """Any client of the broker may have written them."""
    config, where = deployment
    name = config.bus.prefix + trajectories.TOPIC.name
    put_aside(config, b"{")
    odd = [
        [("dlq-topic", b"another.trajectories")],
        [("dlq-topic", b"\xff\xfe")],
        [("dlq-topic", name.encode()), ("dlq-partition", b"9" * 30)],
        [("dlq-topic", name.encode()), ("dlq-partition", "\u00b2".encode())],
        [("dlq-topic", name.encode()), ("dlq-partition", b"77")],
        [],
    ]
    asyncio.run(send_raw(config, "trajectories.dlq", odd))
    asyncio.run(send_raw(config, "trajectories", [[(letters.REDRIVEN, b"\xff\xfe")]]))
    assert invoke_json("dlq", "list", *where)[0]["letters"] == 7
    assert len(invoke_json("dlq", "show", "trajectories", *where)) == 7
    result = [row.outcome for row in letters.redrive(config.bus, trajectories.TOPIC)]
    said = [outcome.partition(" as ")[0].partition(":")[0] for outcome in result]
    assert said == ["sent", "not sent", "not sent", "sent", "sent", "sent", "sent"]
    again = invoke("dlq", "redrive", "trajectories", "--all", *where)
    assert again.exit_code == 1, "two were not sent"
    assert "not sent" in again.stdout


def test_a_stub_is_not_sent_back_and_names_the_place_of_its_record(deployment):
    config, where = deployment
    large = b"0" * (8 << 20)
    put_aside(config, large, None, b"{")
    (row,) = invoke_json("dlq", "list", *where)
    assert (row["letters"], row["stubs"]) == (3, 2)
    shown = invoke_json("dlq", "show", "trajectories", *where)
    assert shown[0]["value"] == "0" * 1024
    assert f"{len(large)} bytes, sha256 {hashlib.sha256(large).hexdigest()}" in shown[0]["stub"]
    assert "no value, and no key" in shown[1]["stub"]
    assert shown[2]["stub"] == ""
    outcomes = [row["outcome"] for row in invoke_json("dlq", "redrive", "trajectories", "--all", *where)]
    for offset in (0, 1):
        assert outcomes[offset].startswith("a stub, not sent")
        assert f"{config.bus.prefix}trajectories[0]@{offset}" in outcomes[offset]
    assert outcomes[2].startswith("sent as ")
    assert [record.value for record in present_records(config.bus, trajectories.TOPIC)] == [b"{"]


@pytest.mark.parametrize("client", ["aiokafka", "kafka-python"])
def test_a_dead_letter_topic_that_takes_less_than_declared_gets_a_stub(deployment, client):
    config, where = deployment
    twin = letters.dead_letter_topic(trajectories.TOPIC)
    smaller = Change(
        topic=config.bus.prefix + twin.name, action="alter", before={}, after={"max.message.bytes": "4000"}
    )
    with admin.connect(config.bus) as brokers:
        admin.apply(brokers, [smaller])
    if client == "aiokafka":
        put_aside(config, b"x" * 100_000)
    else:
        name = config.bus.prefix + trajectories.TOPIC.name
        record = ConsumerRecord(name, 0, 0, 1, 0, b"key", b"x" * 100_000, None, 3, 100_000, ())
        producer = sync_clients.create_producer(config.bus, "test", idempotent=False)
        sync_dead_letters.send(producer, trajectories.TOPIC, record, "why", 30)
        producer.close()
    (letter,) = invoke_json("dlq", "show", "trajectories", *where)
    assert "took no letter of this size" in letter["stub"]
    assert "100000 bytes" in letter["stub"]


def test_what_is_not_there_is_refused_and_nothing_is_sent(deployment):
    config, where = deployment
    assert invoke_json("dlq", "list", *where) == []
    put_aside(config, b"{")
    for arguments, text in (
        (("show", "trajectory"), "no topic 'trajectory'"),
        (("redrive", "trajectories", "--at", "0@7"), "there are 0@0"),
        (("redrive", "trajectories"), "--all"),
    ):
        with pytest.raises(UserError, match=text):
            invoke_json("dlq", *arguments, *where)
    assert invoke_json("dlq", "redrive", curated.TOPIC.name, "--all", *where) == []
    assert list(present_records(config.bus, trajectories.TOPIC)) == []
