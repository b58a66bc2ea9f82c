"""One JVM daemon: its home folder, the mark on its command line by which it is found again, its port, start and stop.

A daemon outlives the command that starts it, in a process session of its own.
"""

import contextlib
import ctypes
import ipaddress
import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from dart_streams.errors import ConfigError, ServiceUnavailable

HOME_MARK = "-Ddart.streams.home="
"""Begins the argument by which the process of a local service is recognized; its home folder follows."""
PORT_MARK = "-Ddart.streams.port="
EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
FIRST_PORT = 20_000
"""Of those that are looked at for a free one."""
PORTS_APART = 97
"""Between the ports at which processes with neighboring ids begin to look."""
PR_SET_TIMERSLACK = 29
DEFAULT_SLACK = 0

_ports_given = itertools.count()


class Home:
    """The folder of one service: ``data/``, its configuration and ``<name>.log``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.name = folder.name
        self.data = self.folder / "data"
        self.log = self.folder / f"{self.name}.log"

    def marks(self, port: int) -> list[str]:
        """Return the arguments that make this home's process recognizable."""
        return [f"{HOME_MARK}{self.folder}", f"{PORT_MARK}{port}"]

    def find(self) -> tuple[psutil.Process, int] | None:
        """Return the live process of this home and its port, by the marks on its command line."""
        for process in psutil.process_iter(["cmdline"]):
            arguments = process.info["cmdline"] or []
            if f"{HOME_MARK}{self.folder}" in arguments and is_alive(process):
                return process, next(int(a.removeprefix(PORT_MARK)) for a in arguments if a.startswith(PORT_MARK))
        return None

    def spawn(self, command: Sequence[str], slack_us: int = 0) -> psutil.Process:
        """Start ``command`` as this home's daemon, its output in the log; the log of the last start is kept as .1."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.log.exists():
            self.log.replace(self.log.with_suffix(".log.1"))
        with self.log.open("wb") as log, timer_slack(slack_us):
            return psutil.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
            )

    def last_lines(self, count: int = 8) -> str:
        """Return the end of the log without stack frames, for an error message."""
        try:
            lines = self.log.read_text(errors="replace").strip().splitlines()
        except FileNotFoundError:
            return "(no log)"
        lines = [line for line in lines if not line.startswith(("\tat ", "    at ", "\t... "))]
        return "\n".join(lines[-count:]) or "(an empty log)"


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process runs; one that has ended but was not yet reaped does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def stop(processes: Sequence[psutil.Process], grace_s: float) -> None:
    """End processes with SIGTERM; after ``grace_s`` seconds kill those left, and all below them."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, stubborn = psutil.wait_procs(processes, timeout=grace_s)
    for process in stubborn:
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in (*process.children(recursive=True), process):
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
    psutil.wait_procs(stubborn, timeout=5)


@contextlib.contextmanager
def timer_slack(microseconds: int) -> Iterator[None]:
    """Let Linux wake the sleeping threads of processes started in the body up to that much too late; 0: its default.

    Cassandra's idle workers sleep for microseconds at a time: with the usual 50 us of slack that is thousands of
    wake-ups a second, which a node whose writes wait for a disk does not need.
    """
    if not microseconds or not sys.platform.startswith("linux"):
        yield
        return
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(microseconds * 1000))
    try:
        yield
    finally:
        libc.prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(DEFAULT_SLACK))


def local_address(server: str, setting: str) -> tuple[str, int]:
    """Split ``host:port`` of one server on this machine into an IPv4 address and a port; raise for any other."""
    host, _, port = server.strip().rpartition(":")
    if "," in server or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"{setting} is {server!r}: the local services need one host:port, for instance 127.0.0.1:9092"
        )
    try:
        host = str(ipaddress.IPv4Address("127.0.0.1" if host == "localhost" else host))
        is_local = ipaddress.IPv4Address(host).is_loopback
    except ValueError:
        is_local = False
    if not is_local:
        raise ConfigError(
            f"{setting} names {host}, which is not a loopback address: `dart-streams up` starts services on this "
            "machine only. Start the service there, or set 127.0.0.1"
        )
    return host, int(port)


def in_use(host: str, port: int) -> bool:
    """Return whether something already listens on ``port``."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False


def free_port() -> int:
    """Return a port that nobody listens on at this moment, another at each call.

    It is none of those that the system gives to connections: until it is listened on, which may take a service half a
    minute, a connection of any process could get it.
    """
    low, high = ephemeral_ports()
    candidates = [*range(FIRST_PORT, low), *range(high + 1, 2**16)] or range(FIRST_PORT, 2**16)
    for _ in candidates:
        port = candidates[(os.getpid() * PORTS_APART + next(_ports_given)) % len(candidates)]
        if not in_use("127.0.0.1", port):
            return port
    raise ServiceUnavailable("no port is free")


def ephemeral_ports() -> tuple[int, int]:
    """Return the first and last port that the system gives to connections; IANA's where it does not say."""
    try:
        low, high = map(int, EPHEMERAL_PORTS.read_text().split())
    except (OSError, ValueError):
        return 49152, 65535
    return low, high


def owner_of(port: int) -> psutil.Process | None:
    """Return the process that listens on ``port``, or None if this user may not see it."""
    try:
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return psutil.Process(connection.pid)
    except (psutil.AccessDenied, psutil.NoSuchProcess):
        pass
    return None


def describe(owner: psutil.Process | None) -> str:
    """Name a process so that its user can find it."""
    if owner is None:
        return "a process that this user may not see"
    try:
        command = owner.cmdline()
        home = next((part.removeprefix(HOME_MARK) for part in command if part.startswith(HOME_MARK)), None)
        if home:
            return f"the local service of {home} (pid {owner.pid})"
        return f"pid {owner.pid} ({' '.join(command)[:80] or owner.name()})"
    except psutil.Error:
        return f"pid {owner.pid}"
