"""Local services survive kills, hangs and taken ports. Kafka stands for both where one JVM is enough."""

import asyncio
import io
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from rich.console import Console

from benchmarks.private_services import OWNER, private_folder
from console.launch import process_registry
from console.launch.services import local
from console.launch.services.daemon import Home, free_port
from console.launch.services.jvm import Kafka
from console.launch.services.local import RunningService, bring_up
from console.launch.services.lock import ignore_message
from console.launch.session import Session
from console.launch.supervisor import Supervisor
from console.runs import run_folder
from dart_streams.bus import admin
from dart_streams.config import Bus, Config, Run, Services, Store
from dart_streams.connection.protocol_probes import speaks_cql, speaks_kafka
from dart_streams.errors import ServiceUnavailable
from dart_streams.java import SHARED_JARS
from tests.fork_server import PROGRAM, Forked
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(1200)
BOUND_S = 120.0
READY_S = 240.0
TASKS = Path(__file__).parents[2] / "deploy/config/tasks.toml"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Config]:
    """Services of this module that a test may damage."""
    config = Config(
        bus=Bus(servers=f"127.0.0.1:{free_port()}", prefix="bad-days."),
        store=Store(port=free_port()),
        run=Run(state_dir=str(tmp_path_factory.mktemp("state"))),
        services=Services(ready_s=READY_S),
    )
    yield config
    local.stop_services(config, wipe=True)


@pytest.fixture
def file(config: Config, tmp_path: Path) -> Path:
    file = tmp_path / "c.toml"
    file.write_text(
        f'run.state_dir = "{config.run.state_dir}"\nbus.servers = "{config.bus.servers}"\n'
        f"store.port = {config.store.port}\nservices.ready_s = {READY_S:g}\n"
    )
    return file


def kafka_home(config: Config) -> Home:
    return Home(local.folder_of(config) / "kafka")


def bring_kafka_up(config: Config) -> RunningService:
    kafka = Kafka(config.bus, config.services)
    return bring_up(kafka, kafka_home(config), config.services.ready_s, ignore_message, SHARED_JARS)


def command(verb: str, file: Path, *options: str) -> subprocess.Popen[str]:
    arguments = [PROGRAM, verb, "--config", file, *options]
    return Forked(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def pids(output: str) -> dict[str, int]:
    return {row["name"]: row["pid"] for row in json.loads(output)}


def stop(pid: int) -> None:
    """Stop a process with SIGSTOP, and return when none of its threads can answer any more."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: all(" T " in task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/stat")))


def await_death(process: psutil.Process) -> None:
    psutil.wait_procs([process], timeout=BOUND_S)
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_two_commands_at_once_start_one_service_of_each_kind(config: Config, file: Path):
    both = [command("up", file, "--json") for _ in range(2)]
    outputs = [process.communicate(timeout=READY_S) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert pids(outputs[0][0]) == pids(outputs[1][0])
    wait_until(lambda: speaks_kafka("127.0.0.1", int(config.bus.servers.rpartition(":")[2])), "Kafka's answer")
    wait_until(lambda: speaks_cql("127.0.0.1", config.store.port), "Cassandra's answer")
    again = local.start_services(config)
    assert [running.started for running in again] == [False, False]
    assert {running.name: running.pid for running in again} == pids(outputs[0][0])


def test_a_killed_broker_is_started_again_with_its_topics(config: Config):
    first = bring_kafka_up(config)
    admin.apply_all(config.bus)
    process = psutil.Process(first.pid)
    process.kill()
    await_death(process)
    second = bring_kafka_up(config)
    assert second.started
    assert second.pid != first.pid
    assert admin.apply_all(config.bus) == []


def test_a_killed_database_starts_again_though_its_storage_port_is_taken(config: Config):
    first = {running.name: running.pid for running in local.start_services(config)}
    process = psutil.Process(first["cassandra"])
    process.kill()
    await_death(process)
    noted = local.folder_of(config) / "cassandra" / "storage_port"
    noted.write_text(config.bus.servers.rpartition(":")[2])
    second = {running.name: running for running in local.start_services(config)}
    assert second["cassandra"].started
    assert not second["kafka"].started


def test_a_broker_that_answers_late_is_kept_and_one_that_hangs_is_ended(config: Config, monkeypatch):
    first = bring_kafka_up(config)
    process = psutil.Process(first.pid)
    stop(first.pid)
    late = Kafka(config.bus, config.services)
    kept = local.find_running(late, kafka_home(config), 0.0, lambda _: os.kill(first.pid, signal.SIGCONT))
    assert kept and kept.pid == first.pid
    stop(first.pid)
    monkeypatch.setattr(local, "ANSWER_S", 3.0)
    said: list[str] = []
    assert local.find_running(late, kafka_home(config), 0.0, said.append) is None
    assert f"Kafka: pid {first.pid} does not answer, ending it" in said
    await_death(process)


def test_a_service_that_a_killed_command_left_starting_is_adopted(config: Config, file: Path):
    local.stop_services(config, names=("kafka",))
    killed = command("up", file)
    found = wait_until(lambda: kafka_home(config).find() or killed.poll() is not None, "Kafka")
    assert killed.poll() is None
    killed.kill()
    killed.communicate()
    running = bring_kafka_up(config)
    assert running.pid == found[0].pid
    assert not running.started


def test_a_service_that_can_not_start_is_reported_with_the_end_of_its_log(config: Config, file: Path):
    meta = kafka_home(config).data / "meta.properties"
    local.stop_services(config, wipe=True, names=("kafka",))
    meta.parent.mkdir(parents=True)
    meta.write_text("version=1\nnode.id=77\ncluster.id=x\n")
    failed = command("up", file)
    _, said = failed.communicate(timeout=READY_S)
    assert failed.returncode == 3
    assert "error: Kafka ended while it started" in said
    assert "node" in said.rpartition("ends with")[2].lower()
    assert kafka_home(config).find() is None
    local.stop_services(config, wipe=True, names=("kafka",))


def test_services_whose_owner_was_killed_are_swept_by_the_next(tmp_path: Path):
    homes = tmp_path / "private"
    orphaned = msgspec.structs.replace(
        Config(), bus=Bus(servers=f"127.0.0.1:{free_port()}"), run=Run(state_dir=str(homes / "1"))
    )
    orphan = psutil.Process(bring_kafka_up(orphaned).pid)
    (homes / "1" / OWNER).touch()
    with private_folder(homes):
        await_death(orphan)
        assert [path.name.partition(",")[0] for path in homes.iterdir() if path.is_dir()] == [str(os.getpid())]
    assert not [path for path in homes.iterdir() if path.is_dir()]


def mixed(tmp_path: Path, running: Config) -> Config:
    """Return a configuration with a state folder of its own, beside the Kafka of ``running``."""
    return Config(
        bus=running.bus,
        store=Store(port=free_port()),
        run=Run(state_dir=str(tmp_path / "state")),
        services=Services(ready_s=READY_S),
    )


async def nothing(_: object) -> None:
    pass


async def test_a_run_beside_an_existing_kafka_starts_and_stops_a_cassandra(config: Config, tmp_path: Path):
    kafka = bring_kafka_up(config)
    ours, shown = mixed(tmp_path, config), io.StringIO()
    made = run_folder.create(ours, TASKS, "mixed", resume=False)
    session = Session(made, None, nothing, Console(file=shown, width=200))
    supervisor = Supervisor(made.path, drain_s=1)
    try:
        await session.bring_services_up(supervisor)
        assert session.owns_services == ("cassandra",)
        assert process_registry.read(supervisor.registry_file).services == ("cassandra",)
        await asyncio.to_thread(wait_until, lambda: speaks_cql("127.0.0.1", ours.store.port), "Cassandra's answer")
        assert [service.name for service in local.start_own(ours)] == ["cassandra"]
        assert local.ensure_up(ours) == ()
        await session.end(session.make_run(supervisor), "complete")
    finally:
        local.stop_services(ours, wipe=True)
    assert "Kafka is up already" in shown.getvalue()
    assert "stopped cassandra" in shown.getvalue()
    assert bring_kafka_up(config).pid == kafka.pid, "the Kafka of others goes on"


def test_an_existing_cassandra_stands_beside_a_local_kafka(config: Config, tmp_path: Path):
    local.start_services(config)
    replace = msgspec.structs.replace
    ours = replace(
        mixed(tmp_path, config), bus=replace(config.bus, servers=f"127.0.0.1:{free_port()}"), store=config.store
    )
    try:
        assert local.ensure_up(ours) == ("kafka",)
        assert local.stop_services(ours) == ["kafka"]
        wait_until(lambda: speaks_cql("127.0.0.1", config.store.port), "Cassandra's answer")
    finally:
        local.stop_services(ours, wipe=True)


def test_down_stops_both_and_a_second_down_finds_nothing(config: Config, file: Path):
    running = [psutil.Process(service.pid) for service in local.start_services(config)]
    first = command("down", file)
    psutil.wait_procs(running, timeout=BOUND_S)  # They are this process's children, and zombies until then.
    assert first.wait(timeout=BOUND_S) == 0 and kafka_home(config).find() is None
    assert not speaks_cql("127.0.0.1", config.store.port)
    second = command("down", file)
    _, said = second.communicate(timeout=BOUND_S)
    assert (second.returncode, said.strip()) == (0, "nothing was running")


def test_a_failed_start_leaves_no_service_of_its_own(tmp_path: Path):
    """The port of Cassandra is taken by a program that does not answer CQL, and no client connects to."""
    ours = msgspec.structs.replace(
        mixed(tmp_path, Config()), bus=Bus(servers=f"127.0.0.1:{free_port()}"), services=Services(ready_s=READY_S)
    )
    said: list[str] = []
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", ours.store.port))
        with pytest.raises(ServiceUnavailable, match=r"where Cassandra is to listen, is in use"):
            local.ensure_up(ours, said.append)
    assert any(line.startswith("kafka: stopping pid") for line in said), said
    assert kafka_home(ours).find() is None
