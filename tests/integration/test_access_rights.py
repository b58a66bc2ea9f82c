"""A broker that enforces ACLs: each process has a login of its own, and no right but those that it needs."""

import asyncio
import contextlib
import io
import itertools
import json
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import GroupAuthorizationFailedError, KafkaError, TopicAuthorizationFailedError
from kafka.admin import ScramMechanism, UserScramCredentialUpsertion
from rich.console import Console

from benchmarks.private_services import HOMES, READY_TIMEOUT_S, private_folder
from dart_streams.bus import admin
from dart_streams.bus.clients import create_consumer
from dart_streams.config import Bus, Config, KafkaLogin, Services
from dart_streams.connection import auth
from dart_streams.console.cli.topics import specs_of
from dart_streams.console.launch import access_rights
from dart_streams.console.launch.services import local
from dart_streams.console.launch.services.daemon import Home, free_port
from dart_streams.console.launch.services.jvm import Kafka
from dart_streams.console.launch.services.lock import ignore_message
from dart_streams.console.launch.supervisor import ProcessSpec
from dart_streams.console.runs import run_folder as folder
from dart_streams.console.runs.run_folder import write_toml
from dart_streams.java import SHARED_JARS
from tests.command_line import invoke
from tests.integration.test_circle import HERE, circle_config, session_of
from topics import BY_NAME

pytestmark = pytest.mark.timeout(600)
BOUND_S = 120.0
WORKERS = ("env", "rollout", "recorder", "curator", "trainer", "monitor")


class GuardedKafka(Kafka):
    """A broker with an authorizer: the clear listener is its operator's, the other wants a login and checks rights."""

    def __init__(self, clear: int, guarded: int) -> None:
        super().__init__(Bus(servers=f"127.0.0.1:{clear}"), Services(kafka_heap_mb=256))
        self.guarded = guarded

    def prepare(self, home: Home, java: Path, jars: Path) -> list[str]:
        command = super().prepare(home, java, jars)
        settings = home.folder / "server.properties"
        lines = settings.read_text()
        listeners = next(line for line in lines.splitlines() if line.startswith("listeners="))
        guarded = f"GUARDED://127.0.0.1:{self.guarded}"
        jaas = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        settings.write_text(f"""{lines}
{listeners},{guarded}
advertised.listeners=PLAINTEXT://127.0.0.1:{self.port},{guarded}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,GUARDED:SASL_PLAINTEXT
sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.guarded.scram-sha-512.sasl.jaas.config={jaas}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
""")
        return command


class Guarded(NamedTuple):
    """The broker's two addresses, and the folder of the logins' passwords."""

    operator: Bus
    servers: str
    secrets: Path

    def bus(self, kind: str, prefix: str) -> Bus:
        """Return how a kind of process reaches the broker."""
        login = KafkaLogin(user=f"dart-{kind}", password=f"file:{self.secrets / kind}")
        return Bus(servers=self.servers, prefix=prefix, login=login, wait_s=BOUND_S)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    with private_folder(HOMES, "-guarded") as state:
        broker = GuardedKafka(free_port(), free_port())
        home = Home(state / "services" / broker.name)
        local.bring_up(broker, home, READY_TIMEOUT_S, ignore_message, SHARED_JARS)
        made = Guarded(Bus(servers=f"127.0.0.1:{broker.port}"), f"127.0.0.1:{broker.guarded}", state)
        with admin.connect(made.operator) as client:
            for kind in access_rights.KINDS:
                password = secrets.token_hex(12)
                (state / kind).write_text(password)
                login = UserScramCredentialUpsertion(f"dart-{kind}", ScramMechanism.SCRAM_SHA_512, password)
                assert client.alter_user_scram_credentials([login]) == {f"dart-{kind}": None}
        yield made


def give_rights(guarded: Guarded, config: Config, path: Path) -> None:
    """Give each kind its rights, as the broker's operator does."""
    write_toml(path, msgspec.structs.replace(config, bus=msgspec.structs.replace(config.bus, **operators(guarded))))
    done = invoke("topics", "acls", "--apply", "--config", path)
    assert done.exit_code == 0, done.output


def operators(guarded: Guarded) -> dict[str, object]:
    return {"servers": guarded.operator.servers, "login": KafkaLogin()}


@pytest.fixture(scope="module")
def granted(guarded: Guarded, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A deployment whose topics are there, made with the login ``run``."""
    config = Config(bus=guarded.bus("run", "acls."))
    give_rights(guarded, config, tmp_path_factory.mktemp("granted") / "config.toml")
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
    guarded: Guarded, granted: Config, names: list[str], kind: str
):
    rights = access_rights.rights_of(kind, granted, f"dart-{kind}")
    found = await allowed(guarded.bus(kind, granted.bus.prefix), names)
    for operation in ("Read", "Write"):
        named = [right for right in rights if right.resource == "topic" and operation in right.operations]
        assert found[operation] == {
            name
            for name, right in itertools.product(names, named)
            if name == right.name or (right.pattern == "prefixed" and name.startswith(right.name))
        }


async def test_no_process_joins_the_group_of_another(guarded: Guarded, granted: Config):
    bus = guarded.bus("rollout", granted.bus.prefix)
    consumer = create_consumer(bus, BY_NAME["action-requests"], group="env", client_id="thief")
    try:
        with pytest.raises(GroupAuthorizationFailedError):
            async with asyncio.timeout(BOUND_S):
                await consumer.start()
    finally:
        with contextlib.suppress(KafkaError):
            await consumer.stop()


def test_rights_reach_no_topic_of_another_deployment(guarded: Guarded, granted: Config):
    other = "other.observations"
    with admin.connect(guarded.operator) as client:
        client.create_topics({other: {"num_partitions": 1, "replication_factor": 1}})
        client.wait_for_topics([other])
    for kind in access_rights.KINDS:
        if kind != "tracker":
            assert asyncio.run(allowed(guarded.bus(kind, granted.bus.prefix), [other])) == {
                "Write": set(),
                "Read": set(),
            }


def test_a_circle_turns_with_a_login_for_each_kind(services, guarded: Guarded, tmp_path: Path):
    base = circle_config(services, tmp_path, episodes=0, train_steps=3)
    run = folder.new_id()
    config = msgspec.structs.replace(base, bus=guarded.bus("run", base.bus.prefix))
    made = folder.create(config, HERE / "circle-tasks.toml", run, resume=False)
    give_rights(guarded, made.config(), tmp_path / "operator.toml")
    shown = io.StringIO()
    session = session_of(made, Console(file=shown, width=160))
    session.processes = msgspec.structs.replace(
        session.processes,
        **{
            kind: tuple(with_login(spec, kind, made, guarded) for spec in getattr(session.processes, kind))
            for kind in WORKERS
        },
    )
    asyncio.run(session.run())
    report = json.loads((made.path / "report.json").read_text())
    assert (report["outcome"], report["lost"]) == ("complete", 0), shown.getvalue()
    assert report["train_steps"] >= 3
    logs = "".join(log.read_text() for log in made.path.glob("logs/*.log"))
    assert "uthorization" not in logs


def with_login(spec: ProcessSpec, kind: str, made: folder.RunFolder, guarded: Guarded) -> ProcessSpec:
    """Return a process that uses the login of its kind: with a configuration beside the run's."""
    config = made.config()
    file = made.path / f"config-{kind}.toml"
    tasks = msgspec.structs.replace(config.tasks, file="tasks.toml")
    write_toml(file, msgspec.structs.replace(config, bus=guarded.bus(kind, config.bus.prefix), tasks=tasks))
    command = tuple(str(file) if word == str(made.config_file) else word for word in spec.command)
    assert command != spec.command
    return msgspec.structs.replace(spec, command=command)
