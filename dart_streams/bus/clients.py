"""Asynchronous Kafka clients (aiokafka) that know our topics: publish events, read records and decode them."""

import asyncio
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

import msgspec
import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord
from aiokafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError

from dart_streams.bus.codec import Header, decode, encode
from dart_streams.config import Bus
from dart_streams.errors import ServiceUnavailable
from dart_streams.telemetry.propagation import current_headers
from topics import Topic

SESSION_MS = 10_000
"""A member of a group that is silent for so long is taken for dead, and its partitions go to the others."""


class Publisher:
    """An idempotent producer of events: acknowledged by all replicas, in order per key."""

    def __init__(self, bus: Bus, client_id: str) -> None:
        self.bus = bus
        self.producer = AIOKafkaProducer(
            bootstrap_servers=bus.servers, client_id=client_id, acks="all", enable_idempotence=True, linger_ms=0
        )

    async def __aenter__(self) -> Self:
        await start_within(self.producer, self.bus)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.producer.stop()

    async def publish(
        self,
        topic: Topic,
        event: msgspec.Struct,
        *,
        partition: int | None = None,
        headers: Iterable[Header] = (),
        record_id: str = "",
    ) -> None:
        """Send ``event`` and return when the broker has it. The current trace context travels in the headers."""
        record = encode(topic, event, [*headers, *current_headers()], record_id)
        await self.send(topic.name, record.key, record.value, record.headers, partition=partition)

    async def send(
        self, name: str, key: bytes | None, value: bytes | None, headers: Iterable[Header], partition: int | None = None
    ) -> None:
        """Send raw bytes to the topic called ``name`` (without the prefix) and return when the broker has them.

        Raises
        ------
        ServiceUnavailable
            If the broker did not take them within the client's time-out (40 s).
        """
        try:
            await self.producer.send_and_wait(
                self.bus.prefix + name, value, key=key, headers=list(headers), partition=partition
            )
        except (KafkaTimeoutError, KafkaConnectionError) as error:
            raise ServiceUnavailable(
                f"the broker at {self.bus.servers} took no record for {self.bus.prefix}{name} ({error}): "
                "see `dart-streams doctor`"
            ) from None

    async def partitions_of(self, topic: Topic) -> int:
        """Return how many partitions ``topic`` has.

        Raises
        ------
        ServiceUnavailable
            If the broker does not have the topic, ``bus.wait_s`` long.
        """
        name = self.bus.prefix + topic.name
        try:
            async with asyncio.timeout(self.bus.wait_s):
                return len(await self.producer.partitions_for(name))
        except (TimeoutError, KafkaError):
            raise ServiceUnavailable(
                f"the broker at {self.bus.servers} has no topic {name!r}: "
                "create it with `dart-streams topics apply`, or set bus.prefix"
            ) from None


def consumer(bus: Bus, *topics: Topic, group: str | None, client_id: str, **settings: Any) -> AIOKafkaConsumer:
    """Return an unstarted consumer of ``topics``; with a ``group`` it shares them and commits only when told to.

    Without a group, assign partitions after :func:`start_within`.
    """
    names = [bus.prefix + topic.name for topic in topics] if group else []
    defaults: dict[str, Any] = {
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": SESSION_MS,
        "heartbeat_interval_ms": 3_000,
        "max_poll_interval_ms": 600_000,
        "fetch_max_wait_ms": 200,
    }
    return AIOKafkaConsumer(
        *names,
        bootstrap_servers=bus.servers,
        client_id=client_id,
        group_id=f"{bus.prefix}{group}" if group else None,
        **{**defaults, **settings},
    )


async def start_within(client: AIOKafkaConsumer | AIOKafkaProducer, bus: Bus) -> None:
    """Start a client, trying again until ``bus.wait_s`` is over; it is stopped if that fails or is cancelled.

    Raises
    ------
    ServiceUnavailable
        If no broker answered in time.
    """
    try:
        await start_patiently(client, bus)
    except BaseException:
        await client.stop()
        raise


async def start_patiently(client: AIOKafkaConsumer | AIOKafkaProducer, bus: Bus) -> None:
    """Start a client as :func:`start_within` does, without cleaning up."""
    deadline = time.monotonic() + bus.wait_s
    told = False
    while True:
        try:
            await client.start()
            return
        except (KafkaError, OSError) as error:
            if time.monotonic() >= deadline:
                raise ServiceUnavailable(
                    f"no Kafka broker at {bus.servers} after {bus.wait_s:g} s ({error}): "
                    "start one with `dart-streams up`, or set bus.servers"
                ) from None
            if not told:
                structlog.get_logger().info("waiting for the broker", at=bus.servers, until_s=bus.wait_s)
                told = True
        await asyncio.sleep(min(1.0, bus.wait_s / 10))


def event_of(topic: Topic, record: ConsumerRecord) -> Any:
    """Decode a consumed record; raise :class:`~dart_streams.bus.codec.Undecodable` if it is no event of ``topic``."""
    return decode(topic, record.value, record.headers)
