"""The whole project over TLS, with passwords and certificates, against services that refuse all others."""

import asyncio
import contextlib
import io
import json
import os
import re
import resource
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from rich.console import Console

from console.launch.services import memory
from console.launch.services.daemon import free_port
from console.launch.services.jvm import Kafka
from console.launch.supervisor import ProcessSpec
from console.runs import run_folder as folder
from console.runs.bundle import Bundle
from console.runs.run_folder import write_toml
from dart_streams import config as configuration
from dart_streams.bus import admin, clients, readiness, sync_clients
from dart_streams.config import Bus, Config, KafkaLogin, Login, Store, Tls
from dart_streams.connection import auth
from dart_streams.deadline import Deadline
from dart_streams.errors import AccessRefused, ServiceUnavailable
from dart_streams.java import find_java
from dart_streams.store import sessions
from tests import events, fork_server
from tests.command_line import invoke_json
from tests.integration.exported_page import plain_answers
from tests.integration.secured import USER, Secured
from tests.integration.test_circle import HERE, session_of
from topics import weights

pytestmark = pytest.mark.timeout(900)
BOUND_S = 120.0
VERSION = events.weight_version()


def written(config: Config, path: Path) -> Path:
    write_toml(path, config)
    return path


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return fork_server.run([fork_server.PROGRAM, *arguments], text=True, timeout=240, env={**os.environ, **environment})


WAYS = ("scram", "plain", "by_certificate")


@pytest.mark.parametrize("way", WAYS)
async def test_every_client_of_the_broker_is_accepted(secured: Secured, way: str):
    bus = msgspec.structs.replace(getattr(secured, way)(), prefix=f"test.{way}.")
    assert admin.apply_all(bus)
    assert admin.apply_all(bus) == []
    async with clients.Publisher(bus, "test") as publisher:
        await publisher.publish(weights.TOPIC, VERSION)
    assert await one_record(bus) == VERSION
    with sync_clients.TopicReader(bus, "test", weights.TOPIC) as reader:
        assert [clients.event_of(weights.TOPIC, record) for record in reader.read_to_end()] == [VERSION]
    producer = sync_clients.create_producer(bus, "test")
    producer.send(bus.prefix + weights.TOPIC.name, value=b"x").get(timeout=BOUND_S)
    producer.close()
    await of_faust(bus)


async def one_record(bus: Bus) -> Any:
    reader = clients.create_consumer(bus, weights.TOPIC, group="test", client_id="test")
    await clients.start_within(reader, bus)
    try:
        async with asyncio.timeout(BOUND_S):
            return clients.event_of(weights.TOPIC, await reader.getone())
    finally:
        await reader.stop()


async def of_faust(bus: Bus) -> None:
    """Connect as the curator's transport does with its application's settings."""
    import faust
    from faust.transport.drivers.aiokafka import credentials_to_aiokafka_auth

    app = faust.App("test", store="memory://", autodiscover=False, web_enabled=False, **auth.faust_arguments(bus))
    settings = credentials_to_aiokafka_auth(app.conf.broker_credentials, app.conf.ssl_context)
    servers = [f"{url.host}:{url.port}" for url in app.conf.broker]
    topic = bus.prefix + weights.TOPIC.name
    async with AIOKafkaProducer(bootstrap_servers=servers, **settings) as producer:
        assert await producer.partitions_for(topic) == {0}
    async with AIOKafkaConsumer(bootstrap_servers=servers, **settings) as consumer:
        assert topic in await consumer.topics()


def refused(bus: Bus) -> str:
    with pytest.raises(AccessRefused) as error:
        readiness.await_broker(bus, Deadline(bus.wait_s))
    assert error.value.exit_code == 5
    return str(error.value)


def wrong(secured: Secured, **changes: str) -> KafkaLogin:
    return KafkaLogin(user=USER, password=secured.secret("wrong"), **changes)


def stranger(secured: Secured) -> Tls:
    names = secured.certificates
    return secured.tls(certificate_file=str(names.certificate("stranger")), key_file=str(names.key("stranger")))


BROKER_REFUSALS = {
    "wrong password": (lambda s: s.scram(login=wrong(s)), "refuses the login of 'dart'.*SCRAM-SHA-512"),
    "wrong plain password": (
        lambda s: s.scram(login=wrong(s, mechanism="PLAIN")),
        "refuses the login of 'dart'.*PLAIN",
    ),
    "mechanism off": (lambda s: s.scram(login=wrong(s, mechanism="SCRAM-SHA-256")), "not enabled SCRAM-SHA-256"),
    "no login": (lambda s: s.scram(login=KafkaLogin()), "requires a login: set bus.login.user"),
    "login where none is": (
        lambda s: s.scram(servers=f"localhost:{s.ports.mutual}", tls=s.mutual()),
        "takes no login there",
    ),
    "no certificate": (
        lambda s: s.scram(servers=f"localhost:{s.ports.mutual}", login=KafkaLogin()),
        "requires a client certificate: set bus.tls.certificate_file",
    ),
    "foreign certificate": (
        lambda s: s.scram(servers=f"localhost:{s.ports.mutual}", tls=stranger(s), login=KafkaLogin()),
        "rejects the client certificate",
    ),
    "not trusted": (
        lambda s: s.scram(tls=s.tls(ca_file=str(s.certificates.certificate("other")))),
        "not trusted.*set bus.tls.ca_file",
    ),
    "other host": (lambda s: s.scram(servers=f"127.0.0.1:{s.ports.sasl}"), "not made for the name '127.0.0.1'"),
    "clear at TLS": (lambda s: s.scram(tls=Tls(), login=KafkaLogin()), "requires TLS: set bus.tls.enabled = true"),
    "clear login at TLS": (lambda s: s.scram(tls=Tls()), "requires TLS: set bus.tls.enabled = true"),
    "TLS at clear": (lambda s: s.scram(servers=f"localhost:{s.ports.clear}"), "has no TLS: use its port with TLS"),
}


@pytest.mark.parametrize("case", BROKER_REFUSALS)
def test_what_the_broker_refuses_is_one_sentence_that_says_what_to_do(secured: Secured, case: str):
    bus, text = BROKER_REFUSALS[case]
    assert re.search(text, refused(bus(secured)))


STORE_REFUSALS = {
    "wrong password": (
        lambda s: s.store(login=Login(user=USER, password=s.secret("wrong"))),
        "refuses the login of 'dart'",
    ),
    "no login": (lambda s: s.store(login=Login()), "requires a login: set store.login.user"),
    "not trusted": (
        lambda s: s.store(tls=s.tls(ca_file=str(s.certificates.certificate("other")))),
        "not trusted.*set store.tls.ca_file",
    ),
    "other host": (lambda s: s.store(hosts=("127.0.0.1",)), "not made for the name '127.0.0.1'"),
    "clear at TLS": (lambda s: s.store(tls=Tls()), "requires TLS: set store.tls.enabled = true"),
}


@pytest.mark.parametrize("case", STORE_REFUSALS)
def test_what_the_database_refuses_is_one_sentence_that_says_what_to_do(secured: Secured, case: str):
    store, text = STORE_REFUSALS[case]
    with pytest.raises(AccessRefused) as error:
        sessions.check(store(secured))
    assert re.search(text, str(error.value))


def test_a_database_without_tls_differs_from_one_with(services):
    running = services.running.store
    with pytest.raises(AccessRefused, match=r"has no TLS: .*set store\.tls\.enabled = false"):
        sessions.check(Store(hosts=running.hosts, port=running.port, tls=Tls(enabled=True), wait_s=BOUND_S))
    sessions.check(running)


def test_a_login_that_may_not_make_the_schema_says_what_to_grant(secured: Secured):
    login = Login(user="reader", password=secured.secret("cql"))
    secured.database.add_users({"reader": secured.passwords["cql"]})
    with pytest.raises(AccessRefused, match="grant CREATE on all keyspaces"):
        sessions.create_schema(secured.store(login=login, keyspace="not_mine"))


COMMANDS = {
    "wrong Kafka password": (("topics", "plan"), lambda s: Config(bus=s.scram(login=wrong(s))), 5, "refuses the login"),
    "wrong Cassandra password": (
        ("store", "apply"),
        lambda s: Config(store=s.store(login=Login(user=USER, password=s.secret("wrong")))),
        5,
        "refuses the login",
    ),
    "missing file": (
        ("topics", "plan"),
        lambda s: Config(bus=s.scram(tls=s.tls(ca_file="/no/ca.pem"))),
        2,
        "bus.tls.ca_file: there is no file /no/ca.pem",
    ),
    "worker": (("worker", "env"), lambda s: Config(bus=s.scram(login=wrong(s))), 5, "refuses the login"),
    "curator": (("worker", "curator"), lambda s: Config(bus=s.scram(tls=Tls())), 5, "requires TLS"),
    "up": (("up",), lambda s: Config(bus=s.scram()), 2, "the local services have neither"),
    "heap": (
        ("up",),
        lambda s: msgspec.structs.replace(local_config(s), services=configuration.Services(kafka_heap_mb=10**7)),
        3,
        "too little memory: in MiB, Kafka 10000150 (services.kafka_heap_mb = 10000000)",
    ),
}


def local_config(secured: Secured) -> Config:
    """Return the configuration of a local Kafka that is not up."""
    return Config(
        bus=Bus(servers=f"127.0.0.1:{free_port()}"), run=configuration.Run(state_dir=str(secured.folder / "state"))
    )


@pytest.mark.parametrize("case", COMMANDS)
def test_a_command_ends_with_one_message_and_a_code(secured: Secured, tmp_path: Path, case: str):
    verb, config, code, text = COMMANDS[case]
    config = msgspec.structs.replace(config(secured), tasks=configuration.Tasks(file=str(HERE / "circle-tasks.toml")))
    done = command(*verb, "--config", str(written(config, tmp_path / "c.toml")))
    said = [line for line in done.stderr.splitlines() if "error:" in line]
    assert (done.returncode, len(said)) == (code, 1), done.stderr
    assert text in said[0]
    assert "Traceback" not in done.stderr


def test_a_run_ends_with_one_message_before_it_starts_anything(secured: Secured, tmp_path: Path):
    base = configuration.load(HERE / "circle.toml")
    config = msgspec.structs.replace(
        base,
        bus=secured.scram(),
        store=secured.store(login=Login(user=USER, password=secured.secret("wrong"))),
        run=msgspec.structs.replace(base.run, state_dir=str(tmp_path)),
        tasks=configuration.Tasks(file=str(HERE / "circle-tasks.toml")),
    )
    done = command("run", str(written(config, tmp_path / "c.toml")))
    assert done.returncode == 5, done.stderr
    assert done.stderr.count("error:") == 1
    assert "Cassandra at localhost port" in done.stderr
    assert "refuses the login of 'dart'" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert not [path for path in tmp_path.rglob("*.log") if path.name != "supervisor.log"]


@contextlib.contextmanager
def hanging_up() -> Iterator[int]:
    """Serve a port whose connections are closed at once; yield it."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_a_port_in_use_at_up_ends_with_one_message_and_a_code(tmp_path: Path):
    with hanging_up() as port, hanging_up() as other:
        run = configuration.Run(state_dir=str(tmp_path))
        config = Config(bus=Bus(servers=f"127.0.0.1:{port}"), store=Store(port=other), run=run)
        done = command("up", "--config", str(written(config, tmp_path / "c.toml")))
    assert done.returncode == 3
    assert re.search(rf"error: port {port}, where Kafka is to listen, is in use by pid {os.getpid()}", done.stderr)
    assert "Traceback" not in done.stderr


def test_a_jvm_without_memory_is_recognized_by_its_message():
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))

    java = [str(find_java()), "-Xms8g", "-Xmx8g", "-XX:+UseSerialGC", "-version"]
    done = subprocess.run(java, preexec_fn=limited, capture_output=True, text=True, timeout=BOUND_S)
    assert done.returncode
    kafka = Kafka(Bus(servers="127.0.0.1:1"), configuration.Services())
    assert "got no memory" in memory.memory_advice(done.stdout + done.stderr, killed=False, service=kafka)


def test_a_service_that_just_is_not_there_is_waited_for(secured: Secured):
    with pytest.raises(ServiceUnavailable, match="no Kafka broker at localhost:1 after 1 s"):
        admin.apply_all(secured.scram(servers="localhost:1", wait_s=1))


class Circle(NamedTuple):
    """A short run of all processes: what its terminal has shown, the logs, and the store beside the log."""

    made: folder.RunFolder
    shown: str
    logs: str
    difference: list[dict[str, Any]]


PROCESSES = ("env", "rollout", "recorder", "curator", "trainer", "monitor")


@pytest.fixture(scope="module")
def circle(secured: Secured, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Circle]:
    """The scripted circle, a login for each process; passwords come from the environment and from files."""
    base = configuration.load(HERE / "circle.toml")
    replace = msgspec.structs.replace
    config = replace(
        base,
        bus=from_environment(secured.bus_of("run", base.bus.prefix)),
        store=secured.store_of("run"),
        run=replace(base.run, state_dir=str(tmp_path_factory.mktemp("circle")), train_steps=3, minutes=10, settle_s=60),
        evaluation=replace(base.evaluation, episodes=0),
    )
    made = folder.create(config, HERE / "circle-tasks.toml", folder.new_id(), resume=False)
    secured.give_rights(made.config(), secured.folder / "operator.toml")
    shown = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        for kind in ("run", *PROCESSES):
            patch.setenv(variable(f"dart-{kind}"), secured.passwords[f"dart-{kind}"])
        session = session_of(made, Console(file=shown, width=160))
        cast = {
            kind: tuple(with_login(spec, kind, made, secured) for spec in getattr(session.processes, kind))
            for kind in PROCESSES
        }
        session.processes = replace(session.processes, **cast)
        asyncio.run(session.run())
        where = ("--state", config.run.state_dir, "-o", str(made.path / "run.dart"), "--blobs")
        for arguments in (("capture", made.id, *where), ("doctor", "--config", str(made.config_file))):
            done = command(*arguments)
            shown.write(done.stdout + done.stderr)
        assert (made.path / "run.dart").exists(), shown.getvalue()
        logs = "".join(log.read_text() for log in made.path.glob("logs/*.log"))
        difference = invoke_json("store", "diff", "--run", made.id, "--state", config.run.state_dir)
        yield Circle(made, shown.getvalue(), logs, difference)


def variable(user: str) -> str:
    """Return the name of the environment's variable with a user's password."""
    return f"TEST_SECRET_{user.upper().replace('-', '_')}"


def from_environment(bus: Bus) -> Bus:
    login = msgspec.structs.replace(bus.login, password=f"env:{variable(bus.login.user)}")
    return msgspec.structs.replace(bus, login=login)


def with_login(spec: ProcessSpec, kind: str, made: folder.RunFolder, secured: Secured) -> ProcessSpec:
    """Return a process with the logins of its kind, by a configuration beside the run's."""
    config, file = made.config(), made.path / f"config-{kind}.toml"
    bus = from_environment(secured.bus_of(kind, config.bus.prefix))
    tasks = msgspec.structs.replace(config.tasks, file="tasks.toml")
    write_toml(file, msgspec.structs.replace(config, bus=bus, store=secured.store_of(kind), tasks=tasks))
    command = tuple(str(file) if word == str(made.config_file) else word for word in spec.command)
    assert command != spec.command
    return msgspec.structs.replace(spec, command=command)


def test_the_circle_turns_over_tls_with_a_login_for_each_process(circle: Circle):
    found = json.loads((circle.made.path / "report.json").read_text())
    assert (found["outcome"], found["lost"], found["open"]) == ("complete", 0, 0), circle.shown
    assert found["trajectories"]["trained"] > 0
    assert found["train_steps"] >= 3
    assert found["versions_served"] >= 1, "a version may follow another before a worker has taken that one"
    assert "SCRAM-SHA-512" in circle.shown
    for refusal in ("uthorization", "nauthorized", "may not do that"):
        assert refusal not in circle.logs
    assert circle.difference and all(row["equal"] for row in circle.difference)


def test_no_secret_is_in_anything_that_was_written(circle: Circle, secured: Secured):
    texts = {str(path): path.read_bytes() for path in circle.made.path.parent.parent.rglob("*") if path.is_file()}
    texts["the terminal"] = circle.shown.encode()
    texts |= bundled(circle.made.path / "run.dart")
    texts["the page's answers"] = plain_answers(circle.made.path / "report.html")
    services = secured.folder.parent / "services"
    texts |= {str(path): path.read_bytes() for path in services.rglob("*") if path.is_file()}
    kinds = {Path(name).name for name in texts}
    assert {"config.toml", "env-0.log", "env-0.jsonl", "report.html", "report.json", "observations"} <= kinds
    # The broker's own settings must have the password of PLAIN; that shows that what is there is found.
    where = {
        name for name, data in texts.items() if any(secret.encode() in data for secret in secured.passwords.values())
    }
    assert where == {str(services / "kafka" / "server.properties")}
    assert b"env:TEST_SECRET_DART_RUN" in texts[str(circle.made.config_file)]


def bundled(path: Path) -> dict[str, bytes]:
    """Return a bundle's sections, decompressed."""
    bundle = Bundle(path)
    return {name: b"".join(bundle._items(section, bytes)) for name, section in bundle.sections.items()}
