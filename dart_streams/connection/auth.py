"""What each client needs to be let in: the configuration's TLS and login as the arguments of that client.

Every client of Kafka and Cassandra is built from here. Secrets are read when a client is built, and kept nowhere else.
"""

import os
import ssl
from pathlib import Path
from typing import Any

from dart_streams.config import Bus, Login, Store, Tls
from dart_streams.errors import ConfigError


def kafka(bus: Bus) -> dict[str, Any]:
    """Return the arguments of a kafka-python or aiokafka client: the servers, TLS, and the login.

    Raises
    ------
    ConfigError
        If a certificate, a key or a secret that the configuration names can't be had.
    """
    settings: dict[str, Any] = {"bootstrap_servers": [server.strip() for server in bus.servers.split(",")]}
    if (context := tls_context(bus.tls, "bus.tls")) is not None:
        settings["ssl_context"] = context
    settings["security_protocol"] = {
        (False, False): "PLAINTEXT",
        (True, False): "SSL",
        (False, True): "SASL_PLAINTEXT",
        (True, True): "SASL_SSL",
    }[bus.tls.enabled, bool(bus.login.user)]
    if bus.login.user:
        settings["sasl_mechanism"] = bus.login.mechanism
        settings["sasl_plain_username"] = bus.login.user
        settings["sasl_plain_password"] = password(bus.login, "bus.login")
    return settings


def faust(bus: Bus) -> dict[str, Any]:
    """Return the arguments of a Faust application; it hands them to aiokafka. Raises as :func:`kafka` does."""
    from faust import SASLCredentials, SSLCredentials

    settings = kafka(bus)
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


def cassandra(store: Store) -> dict[str, Any]:
    """Return the arguments of a driver's ``Cluster``: TLS and the login; raises as :func:`kafka` does."""
    from cassandra.auth import PlainTextAuthProvider

    arguments: dict[str, Any] = {}
    if (context := tls_context(store.tls, "store.tls")) is not None:
        arguments["ssl_context"] = context
    if store.login.user:
        secret = password(store.login, "store.login")
        arguments["auth_provider"] = PlainTextAuthProvider(store.login.user, secret)
    return arguments


def password(login: Login, section: str) -> str:
    """Return the password of a login; ``section`` is its place in the configuration, for errors."""
    return secret(login.password, f"{section}.password")


def secret(reference: str, key: str) -> str:
    """Return what ``env:NAME`` or ``file:PATH`` has, without the end of its line.

    Raises
    ------
    ConfigError
        If it isn't there or is empty; the text names ``key``, never what was found.
    """
    kind, _, place = reference.partition(":")
    if kind == "env":
        found = os.environ.get(place, "")
        if not found:
            raise ConfigError(f"{key} is {reference}, and that environment variable is not set: set it")
        return found
    found = read(place, key).rstrip("\r\n")
    if not found:
        raise ConfigError(f"{key} is {reference}, and that file is empty: write the password into it")
    return found


def tls_context(tls: Tls, section: str) -> ssl.SSLContext | None:
    """Return a context that trusts and shows what the configuration says, TLS 1.2 at least; None if TLS is off.

    Raises
    ------
    ConfigError
        If a file is missing or is not what its key says; the text names the key.
    """
    if not tls.enabled:
        return None
    context = ssl.create_default_context()
    if tls.ca_file:
        context = ssl.create_default_context(cadata=authorities(tls.ca_file, f"{section}.ca_file"))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if tls.certificate_file:
        show_certificate(context, tls, section)
    return context


def authorities(path: str, key: str) -> str:
    """Return the certificates of a file; raise :class:`ConfigError` if there are none that can be used."""
    text = read(path, key)
    try:
        ssl.create_default_context(cadata=text)
    except (ssl.SSLError, ValueError):
        raise ConfigError(f"{key}: {path} has no certificates in PEM: give that of the authority to trust") from None
    return text


def show_certificate(context: ssl.SSLContext, tls: Tls, section: str) -> None:
    """Have ``context`` show this side's certificate; raise :class:`ConfigError` if it can't."""
    for key in ("certificate_file", "key_file"):
        read(getattr(tls, key), f"{section}.{key}")
    # Without an answer OpenSSL would ask whoever sits at the terminal.
    known = secret(tls.key_password, f"{section}.key_password") if tls.key_password else ""
    try:
        context.load_cert_chain(tls.certificate_file, tls.key_file, password=lambda: known)
    except (ssl.SSLError, ValueError) as error:
        why = getattr(error, "reason", None) or str(error)
        raise ConfigError(
            f"{section}: {tls.certificate_file} and {tls.key_file} are no certificate and its key ({why}): "
            "give both in PEM, and key_password if the key has one"
        ) from None


def read(path: str, key: str) -> str:
    """Return a file's text; raise :class:`ConfigError` that names ``key`` if it can't be read."""
    try:
        return Path(path).read_text()
    except FileNotFoundError:
        raise ConfigError(f"{key}: there is no file {path}: correct the path, or put the file there") from None
    except OSError as error:
        raise ConfigError(f"{key}: {path} can't be read ({error.strerror}): let this user read it") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{key}: {path} is not text: give a file in PEM") from None
