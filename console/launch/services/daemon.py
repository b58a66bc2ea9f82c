"""A JVM daemon, which outlives the command that starts it: home, marks on its command line, port, start and stop."""

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
from typing import NamedTuple

import psutil

from dart_streams.errors import ConfigError, ServiceUnavailable

HOME_MARK = "-Ddart.streams.home="
"""Prefix of the argument that identifies the process of a local service by its home folder."""
PORT_MARK = "-Ddart.streams.port="
EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
FIRST_PORT = 20_000
PORT_STRIDE = 97
"""Distance between the first candidates of processes with neighboring ids."""
LOG_LINE = 300
"""Shown characters of a line of the log."""
PROC = Path("/proc")
BOOT_ID = PROC / "sys" / "kernel" / "random" / "boot_id"
STARTED_FIELD = 19
"""Index of the start time in ``/proc/PID/stat``, counted after the process's name."""
PR_SET_TIMERSLACK = 29
DEFAULT_SLACK = 0

_ports_given = itertools.count()


class Birth(NamedTuple):
    """The start of a process by the kernel: the boot id of the machine, and clock ticks since boot."""

    boot: str
    ticks: int

    @property
    def age_s(self) -> float:
        """Seconds since the start."""
        uptime_s = float((PROC / "uptime").read_text(encoding="utf-8").split()[0])
        return uptime_s - self.ticks / os.sysconf("SC_CLK_TCK")


def birth_of(pid: int) -> Birth | None:
    """Return the start of a process; None if it is gone or the system does not say."""
    try:
        fields = (PROC / str(pid) / "stat").read_text(errors="replace", encoding="utf-8").rpartition(")")[2].split()
        return Birth(BOOT_ID.read_text(encoding="utf-8").strip(), int(fields[STARTED_FIELD]))
    except (OSError, ValueError, IndexError):
        return None


class Home:
    """The folder of one service: ``data/``, its configuration and ``<name>.log``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.name = folder.name
        self.data = self.folder / "data"
        self.log = self.folder / f"{self.name}.log"

    def marks(self, port: int) -> list[str]:
        """Return the arguments that identify this home's process."""
        return [f"{HOME_MARK}{self.folder}", f"{PORT_MARK}{port}"]

    def find(self) -> tuple[psutil.Process, int] | None:
        """Return the live process of this home and its port, by the marks on its command line."""
        psutil.process_iter.cache_clear()  # It keeps a process of an earlier call whose pid has another owner by now.
        for process in psutil.process_iter(["cmdline"]):
            arguments = process.info["cmdline"] or []
            if f"{HOME_MARK}{self.folder}" in arguments and is_alive(process):
                return process, next(int(a.removeprefix(PORT_MARK)) for a in arguments if a.startswith(PORT_MARK))
        return None

    def spawn(self, command: Sequence[str], slack_us: int = 0) -> psutil.Process:
        """Start ``command`` as this home's daemon; the log of the previous start is renamed to ``.log.1``."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.log.exists():
            self.log.replace(self.log.with_suffix(".log.1"))
        with self.log.open("wb") as log, timer_slack(slack_us):
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            environment = jvm_environment()
            return psutil.Popen(command, **streams, cwd=self.folder, env=environment, start_new_session=True)

    def last_lines(self, count: int = 8) -> str:
        """Return the end of the log without stack frames; long lines (class paths) are cut."""
        try:
            lines = self.log.read_text(errors="replace", encoding="utf-8").strip().splitlines()
        except FileNotFoundError:
            return "(no log)"
        lines = [line for line in lines if not line.startswith(("\tat ", "    at ", "\t... "))]
        cut = [line if len(line) <= LOG_LINE else f"{line[: LOG_LINE - 2]} …" for line in lines[-count:]]
        return "\n".join(cut) or "(an empty log)"


def jvm_environment() -> dict[str, str]:
    """Return the variables of a JVM, which else can't name files beyond the locale's letters."""
    return {**os.environ, "LC_ALL": "C.UTF-8"}


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def stop(processes: Sequence[psutil.Process], grace_s: float) -> None:
    """End processes with SIGTERM; after ``grace_s`` seconds, kill the remaining ones and their descendants."""
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
    """Set the timer slack of processes started in the body; 0 keeps the default.

    Cassandra's idle workers sleep for microseconds: the default slack of 50 us means thousands of wake-ups a second.
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
    """Return whether a socket already listens on ``port``."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False


def free_port() -> int:
    """Return a free port, another one at each call.

    It is outside the range of ephemeral ports: a connection could take one of these before the service listens.
    """
    low, high = ephemeral_ports()
    candidates = [*range(FIRST_PORT, low), *range(high + 1, 2**16)] or range(FIRST_PORT, 2**16)
    for _ in candidates:
        port = candidates[(os.getpid() * PORT_STRIDE + next(_ports_given)) % len(candidates)]
        if not in_use("127.0.0.1", port):
            return port
    raise ServiceUnavailable("no port is free")


def ephemeral_ports() -> tuple[int, int]:
    """Return the first and last ephemeral port; IANA's where the system does not say."""
    try:
        low, high = map(int, EPHEMERAL_PORTS.read_text(encoding="utf-8").split())
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
    """Return a description by which a user finds a process."""
    if owner is None:
        return "a process that this user may not see"
    try:
        command = owner.cmdline()
        if home := next((part.removeprefix(HOME_MARK) for part in command if part.startswith(HOME_MARK)), None):
            return f"the local service of {home} (pid {owner.pid})"
        return f"pid {owner.pid} ({' '.join(command)[:80] or owner.name()})"
    except psutil.Error:
        return f"pid {owner.pid}"
