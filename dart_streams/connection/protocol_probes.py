"""Probes of a port: does it answer Kafka's, Cassandra's or TLS's first message? No client library."""

import contextlib
import socket
import ssl
import struct
from collections.abc import Callable

Probe = Callable[[str, int, float], bool]
Greeting = Callable[[str, int, float, ssl.SSLContext | None], bool]

_API_VERSIONS = struct.pack(">hhih", 18, 0, 1, -1)
"""Kafka's ApiVersions request: key 18, version 0, correlation 1, no client id."""
_OPTIONS = bytes([4, 0, 0, 1, 5, 0, 0, 0, 0])
"""CQL's OPTIONS request: protocol 4, no flags, stream 1, opcode 5, an empty body."""


def speaks_kafka(host: str, port: int, timeout_s: float = 2.0, tls: ssl.SSLContext | None = None) -> bool:
    """Return whether a Kafka broker answers requests at ``host:port``."""
    return _answers(greet_kafka, host, port, timeout_s, tls)


def speaks_cql(host: str, port: int, timeout_s: float = 2.0, tls: ssl.SSLContext | None = None) -> bool:
    """Return whether a Cassandra answers requests at ``host:port``."""
    return _answers(greet_cql, host, port, timeout_s, tls)


def speaks_tls(host: str, port: int, timeout_s: float = 2.0) -> bool:
    """Return whether the server at ``host:port`` has TLS, whatever its certificate and whatever it requires."""
    unverified = ssl.create_default_context()
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as connection:
            unverified.wrap_socket(connection, server_hostname=host).close()
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except OSError:
        return False
    return True


def greet_kafka(host: str, port: int, timeout_s: float, tls: ssl.SSLContext | None = None) -> bool:
    """Return whether a Kafka broker answers a request; raise OSError if nothing answers, or TLS fails."""
    request = struct.pack(">i", len(_API_VERSIONS)) + _API_VERSIONS
    reply = _exchange(host, port, request, 10, timeout_s, tls)
    return len(reply) == 10 and struct.unpack(">ih", reply[4:]) == (1, 0)


def greet_cql(host: str, port: int, timeout_s: float, tls: ssl.SSLContext | None = None) -> bool:
    """Return whether a Cassandra answers a request; raise OSError if nothing answers, or TLS fails."""
    reply = _exchange(host, port, _OPTIONS, 9, timeout_s, tls)
    return len(reply) == 9 and reply[0] & 0x80 != 0 and reply[4] == 6


def _answers(greet: Greeting, host: str, port: int, timeout_s: float, tls: ssl.SSLContext | None) -> bool:
    try:
        return greet(host, port, timeout_s, tls)
    except OSError:
        return False


def _exchange(host: str, port: int, request: bytes, size: int, timeout_s: float, tls: ssl.SSLContext | None) -> bytes:
    """Send ``request`` and return the first ``size`` bytes of the answer; fewer if it ends before."""
    with contextlib.ExitStack() as opened:
        connection = opened.enter_context(socket.create_connection((host, port), timeout=timeout_s))
        if tls is not None:
            connection = opened.enter_context(tls.wrap_socket(connection, server_hostname=host))
        connection.sendall(request)
        return opened.enter_context(connection.makefile("rb")).read(size)
