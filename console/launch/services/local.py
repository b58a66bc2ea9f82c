"""Start and stop of the local services; both are idempotent and exclusive for a state folder."""

import contextlib
import shutil
import signal
import socket
import time
from collections.abc import Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import psutil

from console.launch.services import daemon, memory
from console.launch.services.jars import SERVICES, fetch_jars
from console.launch.services.jvm import Cassandra, Kafka, Service
from console.launch.services.lock import Notify, ignore_message, one_at_a_time
from dart_streams.config import Config
from dart_streams.connection.protocol_probes import speaks_cql, speaks_kafka
from dart_streams.deadline import Deadline
from dart_streams.errors import ConfigError, ServiceUnavailable
from dart_streams.java import SHARED_JARS, find_java

LOCK_TIMEOUT_S = 900.0
"""More than any command needs, even with the first fetch of the jars."""
POLL_INTERVAL_S = 0.1
STOP_S, ANSWER_S = 20.0, 30.0
"""Time limits for a service to end, and for one that others may use to answer on a busy machine."""


class RunningService(msgspec.Struct, frozen=True):
    """A local service that answers; ``started`` says whether this call started it."""

    name: str
    host: str
    port: int
    pid: int
    started: bool
    ready_s: float


def services_of(config: Config, names: Container[str] = SERVICES) -> list[Service]:
    """Return the local services of these names; raise :class:`ConfigError` for TLS or a login, which they lack."""
    for name, section, settings in (("kafka", "bus", config.bus), ("cassandra", "store", config.store)):
        if name in names and (settings.tls.enabled or settings.login.user):
            raise ConfigError(
                f"{section} has TLS or a login, and the local services have neither, for they listen on loopback only: "
                f"start {section}'s service yourself, or leave {section}.tls and {section}.login out"
            )
    kafka = [Kafka(config.bus, config.services)] if "kafka" in names else []
    return [*kafka, *([Cassandra(config.store, config.services)] if "cassandra" in names else [])]


def folder_of(config: Config) -> Path:
    """Return the folder of the local services' homes."""
    return Path(config.run.state_dir).absolute() / "services"


def start_services(
    config: Config, notify: Notify = ignore_message, jars: Path = SHARED_JARS, names: Container[str] = SERVICES
) -> list[RunningService]:
    """Start the services that do not run, and return when all answer.

    Raises :class:`ServiceUnavailable` otherwise, after it has stopped those that it started.
    """
    folder = folder_of(config)
    services = services_of(config, names)
    with one_at_a_time(folder, LOCK_TIMEOUT_S, notify):
        memory.refuse_too_little([each for each in services if daemon.Home(folder / each.name).find() is None])
        with ThreadPoolExecutor(max(1, len(services))) as pool:
            args = (config.services.ready_s, notify, jars)
            waits = [pool.submit(bring_up, each, daemon.Home(folder / each.name), *args) for each in services]
        running = [wait.result() for wait in waits if wait.exception() is None]
        if len(running) < len(waits):
            stop_homes([daemon.Home(folder / each.name) for each in running if each.started], notify)
        return [wait.result() for wait in waits]


def ensure_up(config: Config, notify: Notify = ignore_message) -> tuple[str, ...]:
    """Start each local service that has no server that answers; return the names of those that were started.

    A cluster with a broker or node away is up: clients go on with the others.
    """
    servers = servers_of(config)
    silent = {name: [server for server in each if not reaches(server)] for name, each in servers.items()}
    missing = [name for name in SERVICES if len(silent[name]) == len(servers[name])]
    if up := [name for name in SERVICES if name not in missing]:
        lacking = [server for name in up for server in silent[name]]
        away = f"; away: {', '.join(lacking)}" if lacking else ""
        titles = " and ".join(name.capitalize() for name in up)
        notify(f"{titles} {'are' if len(up) > 1 else 'is'} up already{away}")
    if not missing:
        return ()
    return tuple(service.name for service in start_services(config, notify, names=missing) if service.started)


def start_own(config: Config, notify: Notify = ignore_message) -> list[RunningService]:
    """Start the services of this state folder as :func:`start_services`; one of others that answers is left out."""
    others = [name for name, servers in servers_of(config).items() if is_others(config, name, servers)]
    for name in others:
        notify(f"{name.capitalize()} is up already, and not of {folder_of(config)}")
    return start_services(config, notify, names=[name for name in SERVICES if name not in others])


def is_others(config: Config, name: str, servers: list[str]) -> bool:
    """Return whether a service answers that this state folder did not start."""
    if not is_own(servers):
        return any(reaches(server) for server in servers)
    host, _, port = servers[0].rpartition(":")
    speaks = speaks_kafka if name == "kafka" else speaks_cql
    return daemon.Home(folder_of(config) / name).find() is None and speaks(host, int(port), ANSWER_S)


def servers_of(config: Config) -> dict[str, list[str]]:
    """Return the configured ``host:port`` of each service."""
    nodes = [f"{host}:{config.store.port}" for host in config.store.hosts]
    return {"kafka": config.bus.servers.split(","), "cassandra": nodes}


def is_own(servers: list[str]) -> bool:
    """Return whether a service is one server on this machine, which can be started here."""
    try:
        daemon.local_address(",".join(servers), "")
    except ConfigError:
        return False
    return True


def reaches(server: str) -> bool:
    """Return whether ``host:port`` accepts a connection."""
    host, _, port = server.rpartition(":")
    return listens(host, port)


def listens(host: str, port: str) -> bool:
    """Return whether a connection is accepted."""
    try:
        socket.create_connection((host, int(port)), timeout=1.0).close()
    except OSError:
        return False
    return True


def bring_up(service: Service, home: daemon.Home, ready_s: float, notify: Notify, jars: Path) -> RunningService:
    """Return a running service; start it if needed and wait until it answers."""
    began = time.monotonic()
    process = find_running(service, home, ready_s, notify)
    started = process is None
    if process is None:
        refuse_taken_port(service)
        java = find_java()
        command = service.prepare(home, java, fetch_jars(service.name, jars.absolute()))
        process = home.spawn(command, service.slack_us)
        notify(f"{service.title}: starting, pid {process.pid}, port {service.port}")
        wait_until_ready(service, home, process, ready_s)
        notify(f"{service.title}: ready after {time.monotonic() - began:.1f} s")
    ready_s = round(time.monotonic() - began, 2)
    return RunningService(service.name, service.host, service.port, process.pid, started=started, ready_s=ready_s)


def find_running(service: Service, home: daemon.Home, ready_s: float, notify: Notify) -> psutil.Process | None:
    """Return this home's process once it answers; end one that does not answer, and return None."""
    found = home.find()
    if found is None:
        return None
    process, port = found
    if port != service.port:
        raise ServiceUnavailable(
            f"{service.title} of {home.folder} runs on port {port} (pid {process.pid}), and {service.setting} asks for "
            f"{service.port}: run `dart-streams down` first"
        )
    if service.answers():
        return process
    # The command that started it may have been killed meanwhile: it gets what is left of its time.
    born = daemon.birth_of(process.pid)
    left_s = max(ANSWER_S, ready_s - (born.age_s if born else time.time() - process.create_time()))
    notify(f"{service.title}: pid {process.pid} does not answer yet, waiting {left_s:.0f} s for it")
    with contextlib.suppress(ServiceUnavailable):
        wait_until_ready(service, home, process, left_s)
        return process
    notify(f"{service.title}: pid {process.pid} does not answer, ending it")
    daemon.stop([process], grace_s=3)
    return None


def refuse_taken_port(service: Service) -> None:
    """Raise :class:`ServiceUnavailable` if another program listens on the service's port."""
    if not daemon.in_use(service.host, service.port):
        return
    owner = daemon.describe(daemon.owner_of(service.port))
    raise ServiceUnavailable(
        f"port {service.port}, where {service.title} is to listen, is in use by {owner}: "
        f"stop that program, or set another port in {service.setting}"
    )


def wait_until_ready(service: Service, home: daemon.Home, process: psutil.Process, ready_s: float) -> None:
    """Return when the service answers; otherwise end it and raise with its last log lines."""
    deadline = Deadline(ready_s)
    while True:
        alive = daemon.is_alive(process)
        if alive and service.answers(timeout_s=1.0):
            return
        if not alive or deadline.expired:
            break
        time.sleep(POLL_INTERVAL_S)
    what = f"was not ready within {ready_s:.0f} s" if alive else "ended while it started"
    daemon.stop([process], grace_s=1)
    end = home.last_lines()
    if alive:
        what += " (on a busy machine raise services.ready_s)"
    else:
        what += memory.memory_advice(
            end, killed=getattr(process, "returncode", None) == -signal.SIGKILL, service=service
        )
    raise ServiceUnavailable(f"{service.title} {what}; {home.log} ends with\n{end}")


def stop_services(
    config: Config, *, wipe: bool = False, notify: Notify = ignore_message, names: Container[str] = SERVICES
) -> list[str]:
    """Stop this state folder's services of these names, and return their names; with ``wipe`` remove their data."""
    folder = folder_of(config)
    with one_at_a_time(folder, LOCK_TIMEOUT_S, notify):
        homes = [daemon.Home(folder / name) for name in SERVICES if name in names]
        stopped = stop_homes(homes, notify)
        for home in homes if wipe else ():
            if home.folder.exists():
                shutil.rmtree(home.folder)
    return stopped


def stop_homes(homes: Sequence[daemon.Home], notify: Notify) -> list[str]:
    """Stop the processes of these homes, and return the names of those that ran; the folder is locked."""
    found = {home.name: process for home in homes if (running := home.find()) for process in running[:1]}
    for name, process in found.items():
        notify(f"{name}: stopping pid {process.pid}")
    daemon.stop(list(found.values()), STOP_S)
    return list(found)
