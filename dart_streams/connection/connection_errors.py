"""Why a reachable broker or database rejects a client, or is not trusted, and what to do about it.

Each client library reports a failed TLS handshake in its own way, most of them after long retries. So, where one has
failed, the handshake is repeated once here, and OpenSSL's error becomes one sentence.
"""

import ssl
from typing import NamedTuple

from dart_streams.connection.protocol_probes import Greeting, answers, speaks_tls
from dart_streams.errors import AccessRefused

PROBE_S = 3.0
REJECTED = ("UNKNOWN_CA", "CERTIFICATE_UNKNOWN", "CERTIFICATE_EXPIRED", "CERTIFICATE_REVOKED", "ACCESS_DENIED")
REQUIRED = ("CERTIFICATE_REQUIRED", "BAD_CERTIFICATE")
INCOMPATIBLE = ("HANDSHAKE_FAILURE", "PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS_AVAILABLE")
OTHER_HOST = (62, 63, 64)
"""OpenSSL's codes for a certificate of another host name, e-mail address or IP address."""
NOT_VALID_NOW = (9, 10)


class Endpoint(NamedTuple):
    """One server of a service, and the section of the configuration with its TLS and login."""

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
    """Connect once more; return what is wrong with TLS, on either side, or None if nothing is.

    ``context`` is the client's, None without TLS; ``shows_certificate`` says whether it has a client certificate.
    """
    tls, host, port = f"{endpoint.section}.tls", endpoint.host, endpoint.port
    if context is None:
        if speaks_tls(host, port, PROBE_S) and not answers(endpoint.greeting, host, port, PROBE_S):
            return AccessRefused(
                f"{endpoint.place} requires TLS: set {tls}.enabled = true, and {tls}.ca_file to the authority that "
                "signed its certificate, or use its port without TLS"
            )
        return None
    try:
        endpoint.greeting.probe(host, port, PROBE_S, context)
        return None
    except ssl.SSLError as error:
        if (text := describe(error, endpoint, shows_certificate)) is not None:
            return AccessRefused(text)
    except OSError:
        pass
    if answers(endpoint.greeting, host, port, PROBE_S):
        return AccessRefused(f"{endpoint.place} has no TLS: use its port with TLS, or set {tls}.enabled = false")
    return None


def describe(error: ssl.SSLError, endpoint: Endpoint, shows_certificate: bool) -> str | None:
    """Return what a failed handshake means and what to do; None if the server may just have gone away."""
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
