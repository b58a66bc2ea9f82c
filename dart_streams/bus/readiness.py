"""Knocking at the broker before a client is built: until it answers, or for good if it does not let this side in.

The clients themselves try again for long, in silence, and leave threads behind where they give up; and each has its own
words for a wrong password. aiokafka's connection goes through all that any client has to: TLS, login, a first request.
"""

import asyncio
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import structlog
from aiokafka.conn import create_conn
from aiokafka.errors import (
    IllegalSaslStateError,
    KafkaConnectionError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)
from aiokafka.protocol.admin import SaslHandShakeRequest
from aiokafka.protocol.metadata import MetadataRequest

from dart_streams.config import Bus
from dart_streams.connection import auth as access
from dart_streams.connection import connection_errors as refusals
from dart_streams.connection.connection_errors import Endpoint
from dart_streams.connection.protocol_probes import greet_kafka
from dart_streams.errors import AccessRefused, ConfigError, ServiceUnavailable

TRY_S = 1.0
ANSWER_S = 10.0
"""A broker that has just started takes seconds for its first handshake."""

log = structlog.get_logger()


def await_broker(bus: Bus, deadline: float) -> None:
    """Return when a broker of ``bus.servers`` has let this side in; ``deadline`` is of ``time.monotonic``.

    Raises
    ------
    ServiceUnavailable
        If none answers in time.
    AccessRefused
        If one answers, and refuses this side or is not to be trusted; at once.
    ConfigError
        If the configuration's servers, certificates or secrets can't be used.
    """
    run(await_broker_async(bus, deadline))


async def await_broker_async(bus: Bus, deadline: float) -> None:
    """Do the same as :func:`await_broker` without blocking."""
    settings, told = access.kafka(bus), False
    doors = doors_of(bus)
    settings.pop("bootstrap_servers")
    while True:
        for door in doors:
            try:
                await enter(door, settings, deadline)
                return
            except (KafkaError, OSError) as error:
                last: Exception = error
            if (refused := await refusal(bus, door, settings, last)) is not None:
                raise refused
        if time.monotonic() >= deadline:
            raise no_broker(bus, last)
        if not told:
            log.info("waiting for the broker", servers=bus.servers, at_most_s=bus.wait_s)
            told = True
        await asyncio.sleep(min(TRY_S, bus.wait_s / 10))


def doors_of(bus: Bus) -> list[Endpoint]:
    """Return the servers to knock at; raise :class:`ConfigError` for one without a port."""
    doors = []
    for host, port in bus.places:
        if not host or not port.isdecimal():
            raise ConfigError(f"bus.servers is {bus.servers!r}: give host:port, with commas between several")
        doors.append(Endpoint("Kafka", "bus", host.strip("[]"), int(port), greet_kafka))
    return doors


async def enter(door: Endpoint, settings: dict[str, Any], deadline: float) -> None:
    """Connect, log in, ask for something, and leave; raise ``KafkaError`` or ``OSError`` where that fails."""
    left_s = max(TRY_S, min(ANSWER_S, deadline - time.monotonic()))
    async with asyncio.timeout(left_s):
        connection = await create_conn(door.host, door.port, request_timeout_ms=int(left_s * 1000), **settings)
        try:
            await connection.send(MetadataRequest([]))
        finally:
            connection.close()


async def refusal(bus: Bus, door: Endpoint, settings: dict[str, Any], error: Exception) -> AccessRefused | None:
    """Return why the broker does not let this side in; None if it may do so later."""
    if isinstance(error, ConnectionRefusedError):
        return None
    if (words := of_login(bus, door, error)) is not None:
        return AccessRefused(words)
    context = settings.get("ssl_context")
    found = await asyncio.to_thread(refusals.look, door, context, shows_certificate=bool(bus.tls.certificate_file))
    anonymous = found is None and not bus.login.user and isinstance(error, KafkaConnectionError)
    if anonymous and await wants_login(door, settings):
        return AccessRefused(f"{door.place} wants a login: set bus.login.user and bus.login.password")
    return found


def of_login(bus: Bus, door: Endpoint, error: Exception) -> str | None:
    """Return what an error of the login means and what to do; None if it is no such error."""
    if isinstance(error, SaslAuthenticationFailed):
        return (
            f"{door.place} refuses the login of {bus.login.user!r}: correct it, or the password in "
            f"{bus.login.password}, or have {bus.login.mechanism} credentials made for that user"
        )
    if isinstance(error, UnsupportedSaslMechanismError):
        return (
            f"{door.place} has not switched {bus.login.mechanism} on: set bus.login.mechanism to one of its "
            "sasl.enabled.mechanisms"
        )
    if isinstance(error, IllegalSaslStateError):
        return f"{door.place} takes no login there: use its port for logins, or leave out bus.login"
    return None


async def wants_login(door: Endpoint, settings: dict[str, Any]) -> bool:
    """Return whether a broker offers ways to log in: it cuts off who asks for anything before that."""
    try:
        async with asyncio.timeout(ANSWER_S):
            connection = await create_conn(door.host, door.port, **settings)
            try:
                answer = await connection.send(SaslHandShakeRequest("PLAIN"))
            finally:
                connection.close()
    except (KafkaError, OSError):
        return False
    return bool(answer.error_code != IllegalSaslStateError.errno)


def no_broker(bus: Bus, error: Exception) -> ServiceUnavailable:
    """Return the error that no broker answered."""
    return ServiceUnavailable(
        f"no Kafka broker at {bus.servers} after {bus.wait_s:g} s ({str(error) or type(error).__name__}): "
        "start one with `dart-streams up`, or set bus.servers"
    )


def run(waiting: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end, also in a thread that has an event loop already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(waiting)
        return
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, waiting).result()
