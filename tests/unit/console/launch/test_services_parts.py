"""The parts of the local services that need no JVM."""

import itertools
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from console.launch.services import daemon, jars, local
from console.launch.services.daemon import Home, is_alive, local_address, stop
from console.launch.services.jvm import Cassandra, Kafka
from console.launch.services.lock import ignore_message, one_at_a_time
from dart_streams import java
from dart_streams.config import Bus, Config, Run, Services, Store
from dart_streams.connection import protocol_probes
from dart_streams.errors import ConfigError, ServiceUnavailable
from tests.waiting import wait_until

FOREVER = [sys.executable, "-c", "import signal; signal.pause()"]
DEAF = [
    sys.executable,
    "-c",
    "import signal; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); signal.pause()",
]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path / "kafka")
    yield home
    if found := home.find():
        stop([found[0]], grace_s=1)


@contextmanager
def listener(reply: bytes = b"") -> Iterator[int]:
    """Something that listens on a port, and says ``reply`` to whoever connects."""
    server = socket.create_server(("127.0.0.1", daemon.free_port()))

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                connection.recv(64)
                connection.sendall(reply)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(timeout=5)


def spawned(home: Home, port: int) -> psutil.Process:
    """Start a daemon that only waits; Linux sets a process's arguments just after it has closed what exec closes."""
    child = home.spawn([*FOREVER, *home.marks(port)])
    wait_until(child.cmdline)
    return child


def program(file: Path, *lines: str) -> Path:
    """Write a program of shell commands."""
    file.parent.mkdir(exist_ok=True)
    file.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    file.chmod(0o755)
    return file


def test_a_daemon_is_found_by_its_mark_whoever_had_its_pid_before(home: Home, monkeypatch: pytest.MonkeyPatch):
    child = spawned(home, 1234)
    monkeypatch.setattr(psutil, "_pmap", {child.pid: psutil.Process()})  # what an earlier call has kept
    assert home.find() == (psutil.Process(child.pid), 1234)


def test_a_process_without_the_mark_of_the_home_is_no_daemon(home: Home):
    others = [home.spawn(FOREVER), home.spawn([*FOREVER, *Home(home.folder.with_name("other")).marks(1)])]
    try:
        assert home.find() is None
        assert all(map(is_alive, others))
    finally:
        stop(others, grace_s=5)


def test_a_dead_daemon_that_nobody_has_reaped_is_not_alive(home: Home):
    child = spawned(home, 1234)
    os.kill(child.pid, 9)
    wait_until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE)
    assert home.find() is None
    child.wait()


def test_a_daemon_lives_in_a_session_of_its_own_so_that_ctrl_c_spares_it(home: Home):
    assert os.getsid(pid := spawned(home, 1).pid) == pid


def test_one_that_ignores_sigterm_is_killed_after_the_grace(home: Home):
    child = home.spawn(DEAF)
    wait_until(lambda: "deaf" in home.last_lines())
    stop([child], grace_s=0.3)
    assert not is_alive(child)


def test_a_slow_service_is_ended_with_the_key_to_raise_and_a_short_log(home: Home):
    path = "/jars/a.jar:" * 500
    child = home.spawn([sys.executable, "-c", f"import time; print('Classpath {path}', flush=True); time.sleep(60)"])
    wait_until(lambda: "Classpath" in home.last_lines())
    slow = SimpleNamespace(title="Kafka", answers=lambda timeout_s: False)
    advice = r"not ready within 0 s \(on a busy machine raise services\.ready_s\)"
    with pytest.raises(ServiceUnavailable, match=advice) as end:
        local.wait_until_ready(slow, home, psutil.Process(child.pid), ready_s=0.2)
    assert len(str(end.value).splitlines()[1]) == daemon.LOG_LINE
    child.wait(timeout=60)


def test_the_log_of_the_last_start_is_kept(home: Home):
    for word in ("first", "second"):
        home.spawn([sys.executable, "-c", f"print('{word}')"]).wait(timeout=60)
    assert home.last_lines() == "second"
    assert home.log.with_suffix(".log.1").read_text() == "first\n"


@pytest.mark.parametrize("reply", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_only_the_right_protocol_counts_as_an_answer(reply: bytes):
    with listener(reply) as port:
        assert not protocol_probes.speaks_kafka("127.0.0.1", port, timeout_s=0.3)
        assert not protocol_probes.speaks_cql("127.0.0.1", port, timeout_s=0.3)


def test_the_owner_of_a_port_is_named():
    with listener() as port:
        assert daemon.in_use("127.0.0.1", port)
        owner = daemon.owner_of(port)
        assert owner.pid == os.getpid()
        assert f"pid {os.getpid()}" in daemon.describe(owner)
    assert not daemon.in_use("127.0.0.1", port)


def test_free_ports_differ_and_none_is_of_a_connection_or_listened_on(monkeypatch: pytest.MonkeyPatch):
    ports = [daemon.free_port() for _ in range(20)]
    assert len(set(ports)) == 20
    low, high = daemon.ephemeral_ports()
    assert not [port for port in ports if low <= port <= high]
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert low <= client.getsockname()[1] <= high
    monkeypatch.setattr(daemon, "_ports_given", itertools.count())
    first = daemon.free_port()
    with socket.create_server(("127.0.0.1", first)):
        monkeypatch.setattr(daemon, "_ports_given", itertools.count())
        assert daemon.free_port() != first


def test_where_all_ports_may_be_a_connections_one_of_them_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "range").write_text("1024\t65535\n")
    monkeypatch.setattr(daemon, "EPHEMERAL_PORTS", tmp_path / "range")
    assert daemon.ephemeral_ports() == (1024, 65535)
    assert not daemon.in_use("127.0.0.1", daemon.free_port())
    monkeypatch.setattr(daemon, "EPHEMERAL_PORTS", tmp_path / "nothing")
    assert daemon.ephemeral_ports() == (49152, 65535)


def test_a_taken_port_is_an_error_that_names_the_program_and_the_setting():
    with listener() as port:
        kafka = Kafka(Bus(servers=f"127.0.0.1:{port}"), Services())
        with pytest.raises(ServiceUnavailable, match=rf"port {port}.*pid {os.getpid()}.*bus\.servers"):
            local.refuse_taken_port(kafka)


def test_a_port_that_was_just_given_up_is_free_again():
    """Connections in TIME_WAIT must not keep a service from starting again."""
    with listener(b"x") as port, closing(socket.create_connection(("127.0.0.1", port))) as client:
        client.sendall(b"?")
        assert client.recv(1) == b"x"
    assert not daemon.in_use("127.0.0.1", port)


@pytest.mark.parametrize(
    ("server", "place"),
    [
        ("127.0.0.1:9092", ("127.0.0.1", 9092)),
        ("localhost:1", ("127.0.0.1", 1)),
        ("127.0.0.2:65535", ("127.0.0.2", 65535)),
    ],
)
def test_a_loopback_address_is_where_services_listen(server: str, place: tuple[str, int]):
    assert local_address(server, "bus.servers") == place


@pytest.mark.parametrize(
    "server",
    [
        "",
        "kafka:9092",
        "10.0.0.1:9092",
        "127.0.0.1",
        "127.0.0.1:0",
        "127.0.0.1:70000",
        "127.0.0.1:1,127.0.0.1:2",
        "127.0.0.1:x",
    ],
)
def test_any_other_address_is_refused_and_the_setting_named(server: str):
    with pytest.raises(ConfigError, match=r"bus\.servers"):
        local_address(server, "bus.servers")


def test_without_java_or_maven_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(java, "java_candidates", lambda: iter(()))
    with pytest.raises(ServiceUnavailable, match=r"no Java.*apt-get install openjdk-17-jre-headless"):
        java.find_java()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServiceUnavailable, match=r"no Maven.*apt-get install maven"):
        jars.fetch_jars("kafka", tmp_path)


def test_another_java_is_named_with_its_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    fake = program(tmp_path / "java", "echo 'openjdk version \"25.0.2\" 2026-01-20' >&2")
    monkeypatch.setattr(java, "java_candidates", lambda: iter([fake, tmp_path / "gone"]))
    with pytest.raises(ServiceUnavailable, match=r"java is Java 25.*gone is broken"):
        java.find_java()


@pytest.mark.parametrize(("version", "fits"), [("11.0.2", False), ("17.0.15", True), ("21.0.2", True), ("24", False)])
def test_java_is_taken_from_kafkas_oldest_to_cassandras_newest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, fits: bool
):
    fake = program(tmp_path / "java", f"echo 'openjdk version \"{version}\"' >&2")
    monkeypatch.setattr(java, "java_candidates", lambda: iter([fake]))
    if fits:
        assert java.find_java() == fake
    else:
        with pytest.raises(ServiceUnavailable, match=r"no Java 17 to 23.*JAVA_HOME"):
            java.find_java()


@pytest.mark.parametrize(
    ("does", "text"),
    [
        ("echo '[ERROR] no network' >&2; exit 1", "no network"),
        ('for last; do :; done; mkdir "${last#*=}"; echo >"${last#*=}/kafka-clients.jar"', r"other jars than .*sha256"),
    ],
)
def test_a_failed_fetch_leaves_nothing_that_could_be_taken_for_jars(monkeypatch, tmp_path: Path, does: str, text: str):
    maven = program(tmp_path / "bin" / "mvn", does)
    monkeypatch.setenv("PATH", f"{maven.parent}:{os.environ['PATH']}")
    with pytest.raises(ServiceUnavailable, match=text):
        jars.fetch_jars("kafka", tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["lock"]


@pytest.mark.parametrize("service", [one for one in jars.FETCHED if java.jar_folder(one, java.SHARED_JARS).is_dir()])
def test_the_jars_of_this_machine_are_those_named_by_content(service: str):
    jars.refuse_others(java.jar_folder(service, java.SHARED_JARS), java.RECIPES / service / "jars.sha256")


def test_a_lock_is_waited_for_given_up_and_gone_with_its_process(tmp_path: Path):
    with (
        one_at_a_time(tmp_path, wait_s=1),
        pytest.raises(ServiceUnavailable, match=r"has held .*/lock for \d+ s"),
        one_at_a_time(tmp_path, wait_s=0.2),
    ):
        pass
    with one_at_a_time(tmp_path, wait_s=1):
        pass
    code = f"""
import os, pathlib
from console.launch.services.lock import one_at_a_time
with one_at_a_time(pathlib.Path({str(tmp_path)!r}), 1):
    os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == -9
    with one_at_a_time(tmp_path, wait_s=1):
        pass


def test_a_wait_for_a_lock_is_reported_once_unless_it_is_short(tmp_path: Path):
    reported: list[str] = []
    with one_at_a_time(tmp_path, wait_s=1, notify=reported.append):
        assert reported == []
        with pytest.raises(ServiceUnavailable), one_at_a_time(tmp_path, wait_s=0.8, notify=reported.append):
            pass
    assert reported == [f"waiting for another dart-streams command that works on {tmp_path}"]


def test_a_folder_that_can_not_be_written_to_is_named_with_its_setting(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"can't write to .*file/x/services \(Not a directory\): set run\.state_dir"):
        local.start_services(Config(run=Run(state_dir=str(tmp_path / "file" / "x"))))


def test_services_of_another_port_are_not_started_twice_in_one_folder(home: Home):
    spawned(home, 1)
    with pytest.raises(ServiceUnavailable, match=r"runs on port 1 .*asks for 2: run `dart-streams down` first"):
        local.find_running(Kafka(Bus(servers="127.0.0.1:2"), Services()), home, 1.0, ignore_message)


@pytest.mark.parametrize("step_s", [10_000.0, -10_000.0])
def test_a_service_that_was_left_starting_has_the_rest_of_its_time(
    home: Home, monkeypatch: pytest.MonkeyPatch, step_s: float
):
    waited = list[float]()
    spawned(home, 1)
    monkeypatch.setattr(local, "time", SimpleNamespace(time=lambda: time.time() + step_s))
    monkeypatch.setattr(local, "wait_until_ready", lambda *parts: waited.append(parts[-1]))
    assert local.find_running(Kafka(Bus(servers="127.0.0.1:1"), Services()), home, 600.0, ignore_message)
    assert 500.0 < waited[0] <= 600.0


@pytest.mark.skipif(not Path("/proc/self/timerslack_ns").exists(), reason="timer slack is Linux's")
def test_a_service_sleeps_as_inexactly_as_it_may_and_this_process_as_ever(home: Home):
    before = Path("/proc/self/timerslack_ns").read_text()
    command = [sys.executable, "-c", "print(open('/proc/self/timerslack_ns').read())"]
    home.spawn(command, slack_us=1000).wait(timeout=60)
    assert home.log.read_text().strip() == "1000000"
    assert Path("/proc/self/timerslack_ns").read_text() == before


def test_both_compilers_are_used_where_the_configuration_says_so(home: Home, tmp_path: Path):
    (tmp_path / "jamm-1.jar").touch()
    for optimise in (False, True):
        node = Cassandra(Store(port=1), Services(optimise=optimise))
        command = node.prepare(home, Path("java"), tmp_path)
        quick = next(at for at, word in enumerate(command) if word.startswith("@"))
        full = [at for at, word in enumerate(command) if word == "-XX:TieredStopAtLevel=4"]
        assert bool(full) == optimise
        assert all(at > quick for at in full), "the JVM takes the last word on it"


def test_a_cluster_with_a_broker_and_a_node_away_is_up(tmp_path: Path) -> None:
    lines: list[str] = []
    with listener() as port:
        config = Config(
            bus=Bus(servers=f"127.0.0.1:1,127.0.0.1:{port},127.0.0.1:2"),
            store=Store(hosts=("127.0.0.1", "127.0.0.9"), port=port),
            run=Run(state_dir=str(tmp_path)),
        )
        assert local.ensure_up(config, lines.append) == ()
    assert lines == [f"Kafka and Cassandra are up already; away: 127.0.0.1:1, 127.0.0.1:2, 127.0.0.9:{port}"]
