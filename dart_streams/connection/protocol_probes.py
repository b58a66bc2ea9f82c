"""Probes of a port without a client library: the check of a service, and the reason of a TLS rejection.

Client libraries report a failed TLS handshake differently, most after long retries. Here the handshake is repeated
once, and OpenSSL's error becomes one sentence.
"""

import contextlib
import socket
import ssl
import struct
from collections.abc import Callable
from typing import NamedTuple

from dart_streams.errors import AccessRefused

PROBE_TIMEOUT_S = 3.0
REJECTED = ("UNKNOWN_CA", "CERTIFICATE_UNKNOWN", "CERTIFICATE_EXPIRED", "CERTIFICATE_REVOKED", "ACCESS_DENIED")
REQUIRED = ("CERTIFICATE_REQUIRED", "BAD_CERTIFICATE")
INCOMPATIBLE = ("HANDSHAKE_FAILURE", "PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS_AVAILABLE")
OTHER_HOST = (62, 63, 64)
"""OpenSSL's codes for a certificate of another host name, e-mail address or IP address."""
NOT_VALID_NOW = (9, 10)


Probe = Callable[[str, int, float], bool]


class Greeting(NamedTuple):
    """The first request of a protocol, the size of its answer, and a check of the answer."""

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

    def answers(self, host: str, port: int, timeout_s: float = 2.0, tls: ssl.SSLContext | None = None) -> bool:
        """Return whether a server answers the greeting at ``host:port``."""
        try:
            return self.probe(host, port, timeout_s, tls)
        except OSError:
            return False


KAFKA = Greeting(struct.pack(">ihhih", 10, 18, 0, 1, -1), 10, lambda reply: reply[4:] == struct.pack(">ih", 1, 0))
"""ApiVersions: key 18, version 0, correlation 1, no client id. Its answer repeats the correlation and has no error."""
CQL = Greeting(
    bytes([4, 0, 0, 1, 5, 0, 0, 0, 0]), 9, lambda reply: len(reply) == 9 and reply[0] & 0x80 != 0 and reply[4] == 6
)
"""OPTIONS: protocol 4, no flags, stream 1, opcode 5, an empty body. Its answer is SUPPORTED, opcode 6."""
speaks_kafka = KAFKA.answers
speaks_cql = CQL.answers


def speaks_tls(host: str, port: int, timeout_s: float = 2.0) -> bool:
    """Return whether the server at ``host:port`` has TLS, with any certificate and requirement."""
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


class Endpoint(NamedTuple):
    """A server, and the section of the configuration with its TLS and login."""

    title: str
    section: str
    host: str
    port: int
    greeting: Greeting

    @property
    def place(self) -> str:
        """The server as error texts name it."""
        return f"{self.title} at {self.host}:{self.port}"


def tls_refusal(endpoint: Endpoint, context: ssl.SSLContext | None, shows_certificate: bool) -> AccessRefused | None:
    """Repeat the handshake, and return its TLS error on either side, or None without one.

    ``context`` is the client's (None without TLS), and ``shows_certificate`` whether it has a client certificate.
    """
    tls, host, port = f"{endpoint.section}.tls", endpoint.host, endpoint.port
    if context is None:
        if speaks_tls(host, port, PROBE_TIMEOUT_S) and not endpoint.greeting.answers(host, port, PROBE_TIMEOUT_S):
            return AccessRefused(
                f"{endpoint.place} requires TLS: set {tls}.enabled = true, and {tls}.ca_file to the authority that "
                "signed its certificate, or use its port without TLS"
            )
        return None
    try:
        endpoint.greeting.probe(host, port, PROBE_TIMEOUT_S, context)
        return None
    except ssl.SSLError as error:
        if (text := describe(error, endpoint, shows_certificate)) is not None:
            return AccessRefused(text)
    except OSError:
        pass
    if endpoint.greeting.answers(host, port, PROBE_TIMEOUT_S):
        return AccessRefused(f"{endpoint.place} has no TLS: use its port with TLS, or set {tls}.enabled = false")
    return None


def describe(error: ssl.SSLError, endpoint: Endpoint, shows_certificate: bool) -> str | None:
    """Return the meaning of a failed handshake with advice; None if the server may have gone away."""
    place, tls = endpoint.place, f"{endpoint.section}.tls"
    own = f"set {tls}.certificate_file and {tls}.key_file"
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in OTHER_HOST:
            return (
                f"{place} has a certificate that was not made for the name {endpoint.host!r}: use a name that is in "
                "it, or give the service a certificate with this one as a subject alternative name"
            )
        if error.verify_code in NOT_VALID_NOW:
            fault, advice = "valid now", "have it renewed, and check this machine's clock"
        else:
            fault, advice = "trusted", f"set {tls}.ca_file to the authority that signed it"
        return f"{place} has a certificate that is not {fault} ({error.verify_message}): {advice}"
    reason = error.reason or ""
    if any(word in reason for word in REJECTED) or (shows_certificate and "BAD_CERTIFICATE" in reason):
        return (
            f"{place} rejects the client certificate ({reason}): set {tls}.certificate_file to one that an authority "
            "it trusts has signed, and that has not expired"
        )
    if any(word in reason for word in REQUIRED):
        return f"{place} requires a client certificate: {own}, or use its port for passwords"
    if any(word in reason for word in INCOMPATIBLE):
        return (
            f"{place} has no version or cipher of TLS in common with this client ({reason}): have it accept TLS 1.2 or "
            f"newer; if it requires a client certificate, {own}"
        )
    return None
