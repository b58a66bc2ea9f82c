"""Asynchronous Kafka clients (aiokafka) that know our topics: publish events, read records and decode them."""

import asyncio
import functools
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec
import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord
from aiokafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError
from aiokafka.partitioner import DefaultPartitioner, murmur2
from aiokafka.producer.message_accumulator import BatchBuilder
from tenacity import AsyncRetrying

from dart_streams.bus.codec import Encoded, Header, decode, encode
from dart_streams.bus.readiness import await_broker_async, is_down, no_broker
from dart_streams.bus.send_coalescer import SendCoalescer
from dart_streams.config import Bus
from dart_streams.connection import auth
from dart_streams.connection.retrying import until
from dart_streams.deadline import Deadline
from dart_streams.errors import ServiceUnavailable
from dart_streams.telemetry.propagation import current_headers
from topics import Topic

log = structlog.get_logger()

ANY = DefaultPartitioner()
BATCH_BYTES = 256 * 1024
"""What a request brings of a partition. Requests for actions take kilobytes each, and while a batch is full its senders
wait for the one before to return: with a few records to a batch, hundreds of slots stand in line."""
GAP_S = 0.01
"""A process sends single records this often at most, those of the meantime together: a request costs both sides more
than a record does. One that comes after a pause of this length goes at once."""
SESSION_MS = 10_000
"""A member of a group that is silent for so long is taken for dead, and its partitions go to the others."""


@functools.lru_cache(maxsize=8192)
def hash_of(key: bytes) -> int:
    """Return what Kafka's clients hash a key to. A trajectory's key comes twice a step."""
    return int(murmur2(key)) & 0x7FFFFFFF


def partition_of(key: bytes | None, partitions: Sequence[int], available: Sequence[int]) -> int:
    """Return the partition of a key, as every Kafka client's default would; any, without a key."""
    if key is None:
        return int(ANY(key, partitions, available))
    return partitions[hash_of(key) % len(partitions)]


class Publisher:
    """An idempotent producer of events: acknowledged by all replicas, in order per key.

    ``batch_bytes`` bounds what one request brings of a partition; a larger record goes alone.
    """

    def __init__(self, bus: Bus, client_id: str, batch_bytes: int = BATCH_BYTES) -> None:
        self.bus = bus
        self.pace = SendCoalescer(GAP_S)
        self.producer = AIOKafkaProducer(
            **auth.kafka(bus),
            client_id=client_id,
            acks="all",
            enable_idempotence=True,
            linger_ms=0,
            max_batch_size=batch_bytes,
            partitioner=partition_of,
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
        await self.pace.turn()
        try:
            await self.producer.send_and_wait(
                self.bus.prefix + name, value, key=key, headers=list(headers), partition=partition
            )
        except (KafkaTimeoutError, KafkaConnectionError) as error:
            raise self._refused(name, error) from None

    async def send_all(self, name: str, records: Iterable[Encoded]) -> None:
        """Send records to the topic called ``name``, in order for each key; return when the broker has them all.

        They are packed into whole batches here, which costs a fraction of sending each by itself.

        Raises
        ------
        ServiceUnavailable
            If the broker did not take them within the client's time-out (40 s).
        """
        topic = self.bus.prefix + name
        partitions = sorted(await self.producer.partitions_for(topic))
        try:
            sent = [
                await self.producer.send_batch(batch, topic, partition=partition)
                for partition, batch in self._packed(records, partitions)
            ]
            await asyncio.gather(*sent)
        except (KafkaTimeoutError, KafkaConnectionError) as error:
            raise self._refused(name, error) from None

    def _packed(self, records: Iterable[Encoded], partitions: Sequence[int]) -> list[tuple[int, BatchBuilder]]:
        """Return records as batches with their partitions, those of a partition in order."""
        full: list[tuple[int, BatchBuilder]] = []
        filling: dict[int, BatchBuilder] = {}
        for key, value, headers in records:
            partition = partition_of(key, partitions, partitions) if len(partitions) > 1 else partitions[0]
            batch = filling.get(partition)
            if batch is None or batch.append(timestamp=None, key=key, value=value, headers=headers) is None:
                if batch is not None:
                    full.append((partition, batch))
                batch = filling[partition] = self.producer.create_batch()
                batch.append(timestamp=None, key=key, value=value, headers=headers)
        return [*full, *filling.items()]

    def _refused(self, name: str, error: KafkaError) -> ServiceUnavailable:
        return ServiceUnavailable(
            f"the broker at {self.bus.servers} took no record for {self.bus.prefix}{name} ({error}): "
            "see `dart-streams doctor`"
        )

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
    }
    return AIOKafkaConsumer(
        *names,
        **auth.kafka(bus),
        client_id=client_id,
        group_id=f"{bus.prefix}{group}" if group else None,
        **{**defaults, **settings},
    )


async def start_within(client: AIOKafkaConsumer | AIOKafkaProducer, bus: Bus) -> None:
    """Start a client, trying again for ``bus.wait_s``; it is stopped if that fails or is cancelled.

    Raises
    ------
    ServiceUnavailable
        If no broker answered in time.
    AccessRefused
        If the broker rejects the client, or is not trusted.
    """
    deadline = Deadline(bus.wait_s)

    async def start() -> None:
        await await_broker_async(bus, deadline)
        await client.start()

    policy = until(
        deadline,
        min(1.0, bus.wait_s / 10),
        retryable=is_down,
        waiting=lambda error: log.info("client not started yet", reason=str(error), at_most_s=bus.wait_s),
        unavailable=lambda error: no_broker(bus, error),
    )
    try:
        await AsyncRetrying(**policy)(start)
    except BaseException:
        await client.stop()
        raise


def event_of(topic: Topic, record: ConsumerRecord) -> Any:
    """Decode a consumed record; raise :class:`~dart_streams.bus.codec.Undecodable` if it is no event of ``topic``."""
    return decode(topic, record.value, record.headers)
