"""Waits for a broker before a client is built: until it is ready, or rejects this client for good.

Clients retry silently for long, leave threads behind when they give up, and report a wrong password in different ways.
A bare connection of aiokafka does what every client does: TLS, login, one request.
"""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from aiokafka import errors
from aiokafka.conn import create_conn
from aiokafka.protocol.admin import SaslHandShakeRequest
from aiokafka.protocol.metadata import MetadataRequest
from tenacity import AsyncRetrying

from dart_streams.config import Bus
from dart_streams.connection import auth
from dart_streams.connection.protocol_probes import KAFKA, Endpoint, tls_refusal
from dart_streams.connection.retrying import retry_arguments
from dart_streams.deadline import Deadline
from dart_streams.errors import AccessRefused, ConfigError, ServiceUnavailable

RETRY_INTERVAL_S = 1.0
ANSWER_TIMEOUT_S = 10.0
"""A broker that has just started takes seconds for its first handshake."""


class UnreachableListeners(errors.KafkaConnectionError):
    """A broker answers, and no address that it advertises can be reached, which clients use from then on."""


def await_broker(bus: Bus, deadline: Deadline) -> None:
    """Return once a broker of ``bus.servers``, and one that it advertises, has accepted a connection.

    Raises :class:`ServiceUnavailable` if none does before the deadline. Raises at once ``AccessRefused`` if a broker
    rejects the client or is not trusted, and ``ConfigError`` for unusable servers, certificates or secrets.
    """
    run(await_broker_async(bus, deadline))


async def await_broker_async(bus: Bus, deadline: Deadline) -> None:
    """Do as :func:`await_broker` without blocking."""
    settings, endpoints = auth.kafka_arguments(bus), endpoints_of(bus)
    del settings["bootstrap_servers"]
    await AsyncRetrying(**until_ready(bus, deadline))(try_each, bus, endpoints, settings, deadline)


def until_ready(bus: Bus, deadline: Deadline) -> dict[str, Any]:
    """Return the retry policy of connections to the broker."""
    return retry_arguments(
        deadline,
        min(RETRY_INTERVAL_S, bus.wait_s / 10),
        f"broker at {bus.servers}",
        retryable=lambda error: isinstance(error, errors.KafkaError | OSError),
        unavailable=lambda error: no_broker(bus, error),
    )


def endpoints_of(bus: Bus) -> list[Endpoint]:
    """Return the bootstrap servers; raise :class:`ConfigError` for one without a port."""
    endpoints = []
    for host, port in bus.places:
        if not host or not port.isdecimal():
            raise ConfigError(f"bus.servers is {bus.servers!r}: give host:port, with commas between several")
        endpoints.append(Endpoint("Kafka", "bus", host.strip("[]"), int(port), KAFKA))
    return endpoints


async def try_each(bus: Bus, endpoints: list[Endpoint], settings: dict[str, Any], deadline: Deadline) -> None:
    """Return once a server accepts a connection; raise the last error, or at once a rejection."""
    last: Exception
    for endpoint in endpoints:
        try:
            return await reach_advertised(endpoint, settings, deadline)
        except UnreachableListeners as error:
            last = error
            continue
        except (errors.KafkaError, OSError) as error:
            last = error
        if (refused := await find_refusal(bus, endpoint, settings, last)) is not None:
            raise refused
    raise last


async def reach_advertised(endpoint: Endpoint, settings: dict[str, Any], deadline: Deadline) -> None:
    """Return once a server and a broker that it lists have accepted a connection; a starting one lists none."""
    answer = await request(endpoint, MetadataRequest([]), settings, deadline)
    listed = [(host, port) for _, host, port, *_ in answer.brokers]
    if not listed or (endpoint.host, endpoint.port) in listed:
        return
    for host, port in listed:
        try:
            await request(endpoint._replace(host=host, port=port), MetadataRequest([]), settings, deadline)
            return
        except (errors.KafkaError, OSError) as error:
            last = error
    places = ", ".join(f"{host}:{port}" for host, port in listed)
    raise UnreachableListeners(f"{endpoint.place} advertises {places}: {str(last) or type(last).__name__}")


async def request(endpoint: Endpoint, message: Any, settings: dict[str, Any], deadline: Deadline) -> Any:
    """Return the response to one request over a new connection, including TLS and login."""
    limit_s = max(RETRY_INTERVAL_S, min(ANSWER_TIMEOUT_S, deadline.remaining_s))
    async with asyncio.timeout(limit_s):
        connection = await create_conn(endpoint.host, endpoint.port, request_timeout_ms=int(limit_s * 1000), **settings)
        try:
            return await connection.send(message)
        finally:
            connection.close()


async def find_refusal(
    bus: Bus, endpoint: Endpoint, settings: dict[str, Any], error: Exception
) -> AccessRefused | None:
    """Return the error of a broker that rejects this client; None if a later try may succeed."""
    if isinstance(error, ConnectionRefusedError):
        return None
    if (text := login_refusal(bus, endpoint, error)) is not None:
        return AccessRefused(text)
    shows_certificate = bool(bus.tls.certificate_file)
    refused = await asyncio.to_thread(tls_refusal, endpoint, settings.get("ssl_context"), shows_certificate)
    anonymous = refused is None and not bus.login.user and isinstance(error, errors.KafkaConnectionError)
    if anonymous and await requires_login(endpoint, settings):
        return AccessRefused(f"{endpoint.place} requires a login: set bus.login.user and bus.login.password")
    return refused


def login_refusal(bus: Bus, endpoint: Endpoint, error: Exception) -> str | None:
    """Return the meaning and remedy of a login error; None for other errors."""
    login = bus.login
    match error:
        case errors.SaslAuthenticationFailed():
            return (
                f"{endpoint.place} refuses the login of {login.user!r}: correct it, or the password in "
                f"{login.password}, or have {login.mechanism} credentials made for that user"
            )
        case errors.UnsupportedSaslMechanismError():
            return (
                f"{endpoint.place} has not enabled {login.mechanism}: set bus.login.mechanism to one of its "
                "sasl.enabled.mechanisms"
            )
        case errors.IllegalSaslStateError():
            return f"{endpoint.place} takes no login there: use its port for logins, or leave out bus.login"
    return None


async def requires_login(endpoint: Endpoint, settings: dict[str, Any]) -> bool:
    """Return whether a broker offers SASL mechanisms; it closes connections that send other requests first."""
    try:
        answer = await request(endpoint, SaslHandShakeRequest("PLAIN"), settings, Deadline(ANSWER_TIMEOUT_S))
    except (errors.KafkaError, OSError):
        return False
    return bool(answer.error_code != errors.IllegalSaslStateError.errno)


def no_broker(bus: Bus, error: BaseException) -> ServiceUnavailable:
    """Return the error for a broker that did not answer."""
    if isinstance(error, UnreachableListeners):
        return ServiceUnavailable(
            f"no advertised listener of Kafka can be reached after {bus.wait_s:g} s ({error}): set the broker's "
            "advertised.listeners to an address that this machine reaches, with a port of its own for each network"
        )
    return ServiceUnavailable(
        f"no Kafka broker at {bus.servers} after {bus.wait_s:g} s ({str(error) or type(error).__name__}): "
        "start one with `dart-streams up`, or set bus.servers"
    )


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end, even in a thread with a running event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, coroutine).result()
