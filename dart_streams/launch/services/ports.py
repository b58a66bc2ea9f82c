"""Where a local service listens: the address that clients are configured with, and who holds its TCP port."""

import ipaddress
import socket

import psutil

from dart_streams.errors import ConfigError

HOME_MARK = "-Ddart.streams.home="
"""Begins the argument by which the process of a local service is recognised; its home folder follows."""


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
    """Return a port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
