"""Why a broker or database that can be reached does not let this side in, and what to do about it.

Clients tell of it in as many ways as there are clients, most of them after long retries. So, where one fails, the same
door is knocked at once more, and what TLS then says is put into words.
"""

import ssl
from typing import NamedTuple

from dart_streams.connection.protocol_probes import Greeting, speaks_tls
from dart_streams.errors import AccessRefused

LOOK_S = 3.0
OTHER_HOST = frozenset({62, 63, 64})
"""OpenSSL's codes for a certificate of another host name, e-mail address or IP address."""
EXPIRED, NOT_YET = 10, 9
NO_CERTIFICATE = ("CERTIFICATE_REQUIRED", "BAD_CERTIFICATE")
OUR_CERTIFICATE = ("UNKNOWN_CA", "CERTIFICATE_UNKNOWN", "CERTIFICATE_EXPIRED", "CERTIFICATE_REVOKED", "ACCESS_DENIED")
COMMON_GROUND = ("HANDSHAKE_FAILURE", "PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS_AVAILABLE")


class Endpoint(NamedTuple):
    """One server of a service, and the section of the configuration that says how it is entered."""

    title: str
    section: str
    host: str
    port: int
    greet: Greeting

    @property
    def place(self) -> str:
        """The server as error texts name it."""
        return f"{self.title} at {self.host}:{self.port}"


def look(door: Endpoint, context: ssl.SSLContext | None, *, shows_certificate: bool) -> AccessRefused | None:
    """Knock once more and return what is wrong between two sides of which one or both speak TLS; None if nothing is."""
    if context is None:
        if speaks_tls(door.host, door.port, LOOK_S) and not hears(door, None):
            return AccessRefused(
                f"{door.place} wants TLS: set {door.section}.tls.enabled = true, and {door.section}.tls.ca_file to "
                "the authority that signed its certificate, or use its port without TLS"
            )
        return None
    try:
        door.greet(door.host, door.port, LOOK_S, context)
        return None
    except ssl.SSLError as error:
        if (words := in_words(error, door, shows_certificate=shows_certificate)) is not None:
            return AccessRefused(words)
    except OSError:
        pass
    if hears(door, None):
        return AccessRefused(
            f"{door.place} speaks no TLS: use its port with TLS, or set {door.section}.tls.enabled = false"
        )
    return None


def hears(door: Endpoint, context: ssl.SSLContext | None) -> bool:
    """Return whether the service answers a greeting."""
    try:
        return door.greet(door.host, door.port, LOOK_S, context)
    except OSError:
        return False


def in_words(error: ssl.SSLError, door: Endpoint, *, shows_certificate: bool) -> str | None:
    """Return what a failure of TLS means and what to do; None if it may just be that the other side went away."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return of_their_certificate(error, door)
    reason = error.reason or ""
    tls = f"{door.section}.tls"
    if any(word in reason for word in OUR_CERTIFICATE) or (shows_certificate and "BAD_CERTIFICATE" in reason):
        return (
            f"{door.place} does not take this side's certificate ({reason}): set {tls}.certificate_file to one that "
            "an authority it trusts has signed, and that has not expired"
        )
    if any(word in reason for word in NO_CERTIFICATE):
        return (
            f"{door.place} asks for a certificate of this side: set {tls}.certificate_file and {tls}.key_file, "
            "or use its port for passwords"
        )
    if any(word in reason for word in COMMON_GROUND):
        return (
            f"{door.place} and this side have no version or cipher of TLS in common ({reason}): let it speak TLS 1.2 "
            f"or newer; if it asks for a certificate of this side, set {tls}.certificate_file and {tls}.key_file"
        )
    return None


def of_their_certificate(error: ssl.SSLCertVerificationError, door: Endpoint) -> str:
    """Return why a service's certificate is refused, and what to do."""
    if error.verify_code in OTHER_HOST:
        return (
            f"{door.place} shows a certificate that was not made for the name {door.host!r}: use a name that is in it, "
            "or give the service a certificate that has this one as a subject alternative name"
        )
    if error.verify_code in (EXPIRED, NOT_YET):
        return (
            f"{door.place} shows a certificate that is not valid now ({error.verify_message}): have it renewed, "
            "and check this machine's clock"
        )
    return (
        f"{door.place} shows a certificate that is not trusted ({error.verify_message}): set "
        f"{door.section}.tls.ca_file to the authority that signed it"
    )
