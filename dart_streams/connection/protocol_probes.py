"""Probes of a port: does it answer Kafka's, Cassandra's or TLS's first message? No client library."""

import contextlib
import functools
import socket
import ssl
import struct
from collections.abc import Callable
from typing import NamedTuple

Probe = Callable[[str, int, float], bool]


class Greeting(NamedTuple):
    """The first request of a protocol, the bytes of its answer to read, and what those must be."""

    request: bytes
    size: int
    accepts: Callable[[bytes], bool]

    def probe(self, host: str, port: int, timeout_s: float = 2.0, tls: ssl.SSLContext | None = None) -> bool:
        """Return whether a server answers at ``host:port``; raise OSError if nothing answers, or TLS fails."""
        with contextlib.ExitStack() as opened:
            connection = opened.enter_context(socket.create_connection((host, port), timeout=timeout_s))
            if tls is not None:
                connection = opened.enter_context(tls.wrap_socket(connection, server_hostname=host))
            connection.sendall(self.request)
            return self.accepts(opened.enter_context(connection.makefile("rb")).read(self.size))


def answers(
    greeting: Greeting, host: str, port: int, timeout_s: float = 2.0, tls: ssl.SSLContext | None = None
) -> bool:
    """Return whether a server answers the greeting at ``host:port``."""
    try:
        return greeting.probe(host, port, timeout_s, tls)
    except OSError:
        return False


KAFKA = Greeting(struct.pack(">ihhih", 10, 18, 0, 1, -1), 10, lambda reply: reply[4:] == struct.pack(">ih", 1, 0))
"""ApiVersions: key 18, version 0, correlation 1, no client id. Its answer repeats the correlation and has no error."""
CQL = Greeting(
    bytes([4, 0, 0, 1, 5, 0, 0, 0, 0]), 9, lambda reply: len(reply) == 9 and reply[0] & 0x80 != 0 and reply[4] == 6
)
"""OPTIONS: protocol 4, no flags, stream 1, opcode 5, an empty body. Its answer is SUPPORTED, opcode 6."""
speaks_kafka = functools.partial(answers, KAFKA)
speaks_cql = functools.partial(answers, CQL)


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
