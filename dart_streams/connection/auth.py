"""The configuration's TLS and logins as arguments of each client. Secrets are read when a client is built."""

import hmac
import os
import ssl
from pathlib import Path
from typing import Any

from dart_streams.config import Bus, Store, Tls
from dart_streams.config.connections import SECRET
from dart_streams.config.text import text_of
from dart_streams.errors import ConfigError


def kafka_arguments(bus: Bus) -> dict[str, Any]:
    """Return the arguments of a kafka-python or aiokafka client: servers, TLS and login.

    Raises :class:`ConfigError` if a certificate, key or secret can't be read.
    """
    transport = "SSL" if bus.tls.enabled else "PLAINTEXT"
    settings: dict[str, Any] = {
        "bootstrap_servers": [server.strip() for server in bus.servers.split(",")],
        "security_protocol": f"SASL_{transport}" if bus.login.user else transport,
    }
    if (context := tls_context(bus.tls, "bus.tls")) is not None:
        settings["ssl_context"] = context
    if bus.login.user:
        settings["sasl_mechanism"] = bus.login.mechanism
        settings["sasl_plain_username"] = read_secret(bus.login.user, "bus.login.user")
        settings["sasl_plain_password"] = read_secret(bus.login.password, "bus.login.password")
    return settings


def faust_arguments(bus: Bus) -> dict[str, Any]:
    """Return the arguments of a Faust application; raises as :func:`kafka_arguments` does."""
    from faust import SASLCredentials, SSLCredentials

    settings = kafka_arguments(bus)
    arguments: dict[str, Any] = {"broker": ";".join(f"kafka://{server}" for server in settings["bootstrap_servers"])}
    context = settings.get("ssl_context")
    if bus.login.user:
        arguments["broker_credentials"] = SASLCredentials(
            username=settings["sasl_plain_username"],
            password=settings["sasl_plain_password"],
            mechanism=settings["sasl_mechanism"],
            ssl_context=context,
        )
    elif context is not None:
        arguments["broker_credentials"] = SSLCredentials(context)
    return arguments


def cassandra_arguments(store: Store) -> dict[str, Any]:
    """Return the arguments of a driver's ``Cluster``: TLS and the login; raises as :func:`kafka_arguments` does."""
    from cassandra.auth import PlainTextAuthProvider

    context = tls_context(store.tls, "store.tls")
    arguments: dict[str, Any] = {} if context is None else {"ssl_context": context}
    if store.login.user:
        user = read_secret(store.login.user, "store.login.user")
        password = read_secret(store.login.password, "store.login.password")
        arguments["auth_provider"] = PlainTextAuthProvider(user, password)
    return arguments


def read_secret(reference: str, key: str) -> str:
    """Return the value in ``env:NAME`` or ``file:PATH``, without a final line break; another text is the value itself.

    Raises :class:`ConfigError` with the ``key``, and without the value, if it is missing or empty.
    """
    if not SECRET.fullmatch(reference):
        return reference
    kind, _, place = reference.partition(":")
    if kind == "env":
        if not (value := os.environ.get(place, "")):
            raise ConfigError(f"{key} is {reference}, and that environment variable is not set: set it")
    elif not (value := read_file(place, key).rstrip("\r\n")):
        raise ConfigError(f"{key} is {reference}, and that file is empty: write the value into it")
    return value


def derive_token(secret: str, purpose: str) -> str:
    """Return a token for one purpose, from which nobody finds the secret."""
    return hmac.digest(secret.encode(), purpose.encode(), "sha256").hex()


def is_same_token(given: str, expected: str) -> bool:
    """Compare tokens in constant time."""
    # A header's bytes that are no UTF-8 become surrogates in its text.
    return hmac.compare_digest(given.encode(errors="surrogatepass"), expected.encode())


def tls_context(tls: Tls, section: str) -> ssl.SSLContext | None:
    """Return the client's TLS context (TLS 1.2 or newer), None if TLS is off.

    Raises :class:`ConfigError` with the key in ``section`` if a file is missing or has no certificate or key.
    """
    if not tls.enabled:
        return None
    # Without any text, the system's authorities would be trusted instead of those of an empty file.
    authorities = (read_file(tls.ca_file, f"{section}.ca_file") or "empty") if tls.ca_file else None
    try:
        context = ssl.create_default_context(cadata=authorities)
    except (ssl.SSLError, ValueError):
        raise ConfigError(
            f"{section}.ca_file: {tls.ca_file} has no certificates in PEM: give that of the authority to trust"
        ) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if tls.certificate_file:
        load_certificate(context, tls, section)
    return context


def load_certificate(context: ssl.SSLContext, tls: Tls, section: str) -> None:
    """Load the client certificate; raise :class:`ConfigError` if it or its key can't be used."""
    for key in ("certificate_file", "key_file"):
        read_file(getattr(tls, key), f"{section}.{key}")
    # Without a password OpenSSL would prompt for one at the terminal.
    password = read_secret(tls.key_password, f"{section}.key_password") if tls.key_password else ""
    try:
        context.load_cert_chain(tls.certificate_file, tls.key_file, password=lambda: password)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        raise ConfigError(
            f"{section}: {tls.certificate_file} and {tls.key_file} are no certificate and its key ({reason}): "
            "give both in PEM, and key_password if the key has one"
        ) from None


def read_file(path: str, key: str) -> str:
    """Return a file's text; raise :class:`ConfigError` that names ``key`` if it can't be read."""
    try:
        return text_of(Path(path).read_bytes(), f"{key}: {path}")
    except FileNotFoundError:
        raise ConfigError(f"{key}: there is no file {path}: correct the path, or put the file there") from None
    except OSError as error:
        raise ConfigError(f"{key}: {path} can't be read ({error.strerror}): let this user read it") from None
