"""TCP ports of this machine: who holds one, which is free, and does what answers there speak the right protocol."""

import socket
import struct
from collections.abc import Callable

import psutil

Probe = Callable[[str, int, float], bool]

_API_VERSIONS = struct.pack(">hhih", 18, 0, 1, -1)
"""Kafka's ApiVersions request: key 18, version 0, correlation 1, no client id."""
_OPTIONS = bytes([4, 0, 0, 1, 5, 0, 0, 0, 0])
"""CQL's OPTIONS request: protocol 4, no flags, stream 1, opcode 5, an empty body."""


def speaks_kafka(host: str, port: int, timeout_s: float = 2.0) -> bool:
    """Return whether a Kafka broker that takes requests answers at ``host:port``."""
    reply = _exchange(host, port, struct.pack(">i", len(_API_VERSIONS)) + _API_VERSIONS, 10, timeout_s)
    return len(reply) == 10 and struct.unpack(">ih", reply[4:]) == (1, 0)


def speaks_cql(host: str, port: int, timeout_s: float = 2.0) -> bool:
    """Return whether a Cassandra that takes requests answers at ``host:port``."""
    reply = _exchange(host, port, _OPTIONS, 9, timeout_s)
    return len(reply) == 9 and reply[0] & 0x80 != 0 and reply[4] == 6


def _exchange(host: str, port: int, request: bytes, size: int, timeout_s: float) -> bytes:
    """Send ``request`` and return the first ``size`` bytes of the answer; fewer if none came in time."""
    reply = b""
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as connection:
            connection.settimeout(timeout_s)
            connection.sendall(request)
            while len(reply) < size:
                chunk = connection.recv(size - len(reply))
                if not chunk:
                    break
                reply += chunk
    except OSError:
        return b""
    return reply


def in_use(host: str, port: int) -> bool:
    """Return whether something already listens where a service wants to."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False


def free_port() -> int:
    """Return a port nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def owner_of(port: int) -> psutil.Process | None:
    """Return the process that listens on ``port``, or None if it may not be seen."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.AccessDenied:
        return None
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
            try:
                return psutil.Process(connection.pid)
            except psutil.NoSuchProcess:
                return None
    return None
