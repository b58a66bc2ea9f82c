"""Asynchronous Kafka clients (aiokafka): publish events, consume and decode records, read whole topics."""

import asyncio
import contextlib
import functools
import math
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Self

import aiokafka.consumer.fetcher
import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.errors import InvalidTimestampError, KafkaConnectionError, KafkaError, KafkaTimeoutError
from aiokafka.partitioner import DefaultPartitioner, murmur2
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.structs import OffsetAndMetadata
from tenacity import AsyncRetrying

from dart_streams.bus import compressed_batches, refused_batches
from dart_streams.bus.clock_refusal import clock_refused, is_accepted_now
from dart_streams.bus.codec import Encoded, Header, decode, encode
from dart_streams.bus.readiness import await_broker_async, until_ready
from dart_streams.bus.sticky_assignment import StickyAssignor
from dart_streams.bus.topic_ids import topic_ids
from dart_streams.bus.topology import MAX_LETTER_BYTES
from dart_streams.clock import now_ms
from dart_streams.config import Bus
from dart_streams.connection import auth
from dart_streams.deadline import Deadline
from dart_streams.errors import ServiceUnavailable, UserError
from dart_streams.telemetry.spans import current_headers
from topics import Topic

default_partitioner = DefaultPartitioner()
BATCH_BYTES = 256 * 1024
"""Maximum batch of a partition. Senders to a full batch wait for the previous one to be acknowledged, so small batches
would queue hundreds of slots."""
SEND_INTERVAL_S = 0.01
"""Minimum interval between sends; records queued meanwhile are batched."""
SESSION_TIMEOUT_MS = 10_000
"""A group member without heartbeats for this long is dead; its partitions are reassigned."""
HEARTBEAT_INTERVAL_MS = 3_000
"""Interval of a member's heartbeats, whose answers say that others join or leave."""
METADATA_MAX_AGE_MS = 10_000
"""Maximum age of a consumer's metadata, and so the delay until it reads an added partition."""
COMMIT_TIMEOUT_S = 5.0
"""Timeout of a commit; the next commit covers it. The client itself retries forever, and a member that does so while it
gives up its partitions would never rejoin."""
POLL_TIMEOUT_MS = 200
FETCH_BYTES = 1 << 20
FETCH_WAIT_MS = 400
"""A fetch waits this long for :data:`FETCH_BYTES`; otherwise each new record would cost a fetch."""


@functools.lru_cache(maxsize=8192)
def hash_of(key: bytes) -> int:
    """Return the hash of a key, as Kafka's clients compute it; cached because keys repeat within a step."""
    return int(murmur2(key)) & 0x7FFFFFFF


def partition_of(key: bytes | None, partitions: Sequence[int], available: Sequence[int]) -> int:
    """Return the partition of a key, as Kafka's default partitioner; random without a key."""
    if key is None:
        return int(default_partitioner(key, partitions, available))
    return partitions[hash_of(key) % len(partitions)]


class SendCoalescer:
    """Releases waiting senders in order, all at once, at most every ``gap_s`` seconds.

    After a pause the first sender is released at once, together with all that arrive in the same turn of the event
    loop. Patient senders (:meth:`join`) are released with the next impatient one.
    """

    def __init__(self, gap_s: float) -> None:
        self.gap_s = gap_s
        self._next_s = -math.inf
        self._release: asyncio.Event | None = None
        self._joined = asyncio.Event()
        self._open = False

    async def wait(self) -> None:
        """Return at once if the last release was ``gap_s`` ago or in this turn, else with the next one."""
        if self._open:
            return
        if self._release is None:
            loop = asyncio.get_running_loop()
            now_s = loop.time()
            if now_s >= self._next_s:
                self._next_s = now_s + self.gap_s
                self._open = True
                loop.call_soon(self._close)
                self.hurry()
                return
            self._release = asyncio.Event()
            loop.call_at(self._next_s, self._release_all, self._release)
        await self._release.wait()

    async def join(self, patience_s: float) -> None:
        """Return with the next release of another sender, or with an own one after ``patience_s`` without any."""
        if self._open:
            return
        try:
            async with asyncio.timeout(patience_s):
                await self._joined.wait()
        except TimeoutError:
            await self.wait()

    def hurry(self) -> None:
        """Release the patient senders."""
        self._joined.set()
        self._joined = asyncio.Event()

    def _close(self) -> None:
        self._open = False

    def _release_all(self, release: asyncio.Event) -> None:
        self._release = None
        self._next_s = asyncio.get_running_loop().time() + self.gap_s
        release.set()
        self.hurry()


class Publisher:
    """An idempotent producer of events: acknowledged by all replicas, ordered per key.

    Keys keep their partition for the producer's lifetime even if their topic grows, so a trajectory's end is never read
    before its steps. ``batch_bytes`` is the maximum batch of a partition; a larger record is sent alone.
    """

    def __init__(self, bus: Bus, client_id: str, batch_bytes: int = BATCH_BYTES) -> None:
        refused_batches.install()
        self.bus = bus
        self.coalescer = SendCoalescer(SEND_INTERVAL_S)
        self.producer = AIOKafkaProducer(
            **auth.kafka_arguments(bus),
            client_id=client_id,
            acks="all",
            enable_idempotence=True,
            linger_ms=0,
            max_batch_size=batch_bytes,
            max_request_size=MAX_LETTER_BYTES,
            partitioner=partition_of,
        )
        self._partitions: dict[str, list[int]] = {}

    async def __aenter__(self) -> Self:
        await start_within(self.producer, self.bus)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.producer.stop()

    async def publish(
        self,
        topic: Topic,
        event: msgspec.Struct,
        *,
        partition: int | None = None,
        headers: Iterable[Header] = (),
        record_id: str = "",
        patience_s: float = 0.0,
    ) -> None:
        """Send ``event`` with the current trace context; return once it is acknowledged.

        ``patience_s`` is the maximum wait for other records to share a request with (:meth:`hurry` ends it).
        """
        record = encode(topic, event, [*headers, *current_headers()], record_id)
        await self.send(
            topic.name, record.key, record.value, record.headers, partition=partition, patience_s=patience_s
        )

    def hurry(self) -> None:
        """Release all patient sends."""
        self.coalescer.hurry()

    async def send(
        self,
        name: str,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[Header],
        partition: int | None = None,
        patience_s: float = 0.0,
    ) -> None:
        """Send a record to the topic ``name`` (without the prefix); return once it is acknowledged.

        Raises :class:`ServiceUnavailable` without an acknowledgement within the client's timeout (40 s), and
        :class:`~dart_streams.bus.clock_refusal.ClockRefused` if the broker refuses this machine's time.
        """
        await (self.coalescer.join(patience_s) if patience_s else self.coalescer.wait())
        try:
            if partition is None and key is not None:
                partitions = await self._partitions_at_first(name)
                partition = partition_of(key, partitions, partitions)
            sent = functools.partial(
                self.producer.send_and_wait, self.bus.prefix + name, value, key, partition, headers=list(headers)
            )
            try:
                await sent()
            except InvalidTimestampError as refusal:
                if not is_accepted_now(str(refusal), now_ms()):
                    raise
                await sent()
        except (KafkaTimeoutError, KafkaConnectionError, InvalidTimestampError) as error:
            raise self._unsent(name, error) from None

    async def send_all(self, name: str, records: Iterable[Encoded]) -> None:
        """Send records to the topic ``name``, ordered per key; return once all are acknowledged.

        Packing them into batches here costs a fraction of single sends. Raises as :meth:`send` does.
        """
        topic = self.bus.prefix + name
        try:
            batches = self._packed(records, await self._partitions_at_first(name))
            sent = [await self.producer.send_batch(batch, topic, partition=number) for number, batch in batches]
            await asyncio.gather(*sent)
        except (KafkaTimeoutError, KafkaConnectionError, InvalidTimestampError) as error:
            raise self._unsent(name, error) from None

    async def _partitions_at_first(self, name: str) -> list[int]:
        """Return a topic's partitions at the first record, or the present ones if it was recreated with fewer."""
        now = await self.producer.partitions_for(self.bus.prefix + name)
        first = self._partitions.get(name)
        if first is None or not now.issuperset(first):
            first = self._partitions[name] = sorted(now)
        return first

    def _packed(self, records: Iterable[Encoded], partitions: Sequence[int]) -> list[tuple[int, BatchBuilder]]:
        """Return records as (partition, batch), in order within a partition."""
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

    def _unsent(self, name: str, error: KafkaError) -> UserError:
        if isinstance(error, InvalidTimestampError):
            return clock_refused(self.bus.servers, self.bus.prefix + name, str(error), now_ms())
        return ServiceUnavailable(
            f"the broker at {self.bus.servers} acknowledged no record of {self.bus.prefix}{name} ({error}): "
            "see `dart-streams doctor`"
        )

    async def partitions_of(self, topic: Topic) -> int:
        """Return a topic's partition count; raise :class:`ServiceUnavailable` if it is missing for ``bus.wait_s``."""
        name = self.bus.prefix + topic.name
        try:
            async with asyncio.timeout(self.bus.wait_s):
                return len(await self.producer.partitions_for(name))
        except (TimeoutError, KafkaError):
            raise ServiceUnavailable(
                f"the broker at {self.bus.servers} has no topic {name!r}: "
                "create it with `dart-streams topics apply`, or set bus.prefix"
            ) from None

    async def topic_ids(self, names: Iterable[str]) -> dict[str, str]:
        """Return the ids of the existing topics, by name without the prefix; raise ``KafkaError`` without an answer."""
        full = {self.bus.prefix + name: name for name in names}
        return {full[name]: known for name, known in (await topic_ids(self.producer.client, full)).items()}

    async def partition_counts(self, names: Iterable[str]) -> dict[str, int]:
        """Return partition counts of the existing topics (names without prefix); raise ``KafkaError`` if unanswered."""
        full, client = {name: self.bus.prefix + name for name in names}, self.producer.client
        await asyncio.gather(*(client.add_topic(name) for name in full.values()))
        if not await client.force_metadata_update():
            raise KafkaConnectionError(f"no metadata from {self.bus.servers}")
        counts = {name: len(client.cluster.partitions_for_topic(topic) or ()) for name, topic in full.items()}
        return {name: count for name, count in counts.items() if count}


def create_consumer(bus: Bus, *topics: Topic, group: str | None, client_id: str, **settings: Any) -> AIOKafkaConsumer:
    """Return an unstarted consumer without automatic commits, subscribed to ``topics`` as a member of ``group``.

    Without a group, assign partitions after :func:`start_within`.
    """
    compressed_batches.limit_fetches(aiokafka.consumer.fetcher)
    names = [bus.prefix + topic.name for topic in topics] if group else []
    defaults: dict[str, Any] = {
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": SESSION_TIMEOUT_MS,
        "heartbeat_interval_ms": HEARTBEAT_INTERVAL_MS,
        "max_poll_interval_ms": 600_000,
        "metadata_max_age_ms": METADATA_MAX_AGE_MS,
        "partition_assignment_strategy": (StickyAssignor(),),
    }
    return AIOKafkaConsumer(
        *names,
        **auth.kafka_arguments(bus),
        client_id=client_id,
        group_id=f"{bus.prefix}{group}" if group else None,
        **{**defaults, **settings},
    )


async def start_within(client: AIOKafkaConsumer | AIOKafkaProducer, bus: Bus) -> None:
    """Start a client, retrying for ``bus.wait_s``; stop it on failure or cancellation.

    Raises :class:`ServiceUnavailable` if no broker answers in time, and ``AccessRefused`` if one rejects the client or
    is not trusted.
    """
    deadline = Deadline(bus.wait_s)

    async def start() -> None:
        await await_broker_async(bus, deadline)
        await client.start()

    try:
        await AsyncRetrying(**until_ready(bus, deadline))(start)
    except BaseException:
        await client.stop()
        raise


async def commit_within(records: AIOKafkaConsumer, offsets: Mapping[TopicPartition, int | tuple[int, str]]) -> None:
    """Commit offsets, each with optional metadata.

    Raises ``KafkaTimeoutError`` after :data:`COMMIT_TIMEOUT_S`, and ``CommitFailedError`` or ``IllegalStateError`` if a
    partition is no longer assigned to this member.
    """
    try:
        async with asyncio.timeout(COMMIT_TIMEOUT_S):
            await records.commit(dict(offsets))
    except TimeoutError:
        raise KafkaTimeoutError(f"not done within {COMMIT_TIMEOUT_S:g} s") from None


async def committed_within(
    records: AIOKafkaConsumer, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return committed offsets with their metadata, without partitions that have none.

    Raises ``KafkaTimeoutError`` after :data:`COMMIT_TIMEOUT_S`.
    """
    try:
        async with asyncio.timeout(COMMIT_TIMEOUT_S):
            # `committed` of the client itself returns the offset without its text.
            return dict(await records._coordinator.fetch_committed_offsets(list(partitions)))
    except TimeoutError:
        raise KafkaTimeoutError(f"not known within {COMMIT_TIMEOUT_S:g} s") from None


def event_of(topic: Topic, record: ConsumerRecord) -> Any:
    """Decode a record; raise :class:`~dart_streams.bus.codec.Undecodable` if it is no event of ``topic``."""
    return decode(topic, record.value, record.headers)


@contextlib.asynccontextmanager
async def read_alone(bus: Bus, client_id: str, **settings: Any) -> AsyncIterator[AIOKafkaConsumer]:
    """Yield a started consumer without a group; raise as :func:`start_within` does."""
    records = create_consumer(bus, group=None, client_id=client_id, **settings)
    await start_within(records, bus)
    try:
        yield records
    finally:
        await records.stop()


@contextlib.asynccontextmanager
async def open_topics(
    bus: Bus, publisher: Publisher, topics: tuple[Topic, ...], fetch_ms: int = FETCH_WAIT_MS, *, at_end: bool = False
) -> AsyncIterator[AIOKafkaConsumer]:
    """Yield a consumer at the beginning or end of all partitions of ``topics``; ``publisher`` has their metadata.

    ``fetch_ms`` is the maximum wait of a fetch. Raises :class:`ServiceUnavailable` if the broker or a topic is missing.
    """
    async with read_alone(bus, "watch", fetch_min_bytes=FETCH_BYTES, fetch_max_wait_ms=fetch_ms) as records:
        partitions = [
            TopicPartition(bus.prefix + topic.name, number)
            for topic in topics
            for number in range(await publisher.partitions_of(topic))
        ]
        records.assign(partitions)
        await (records.seek_to_end if at_end else records.seek_to_beginning)(*partitions)
        # A position is looked up on first use, which may be after the first new record.
        for partition in partitions if at_end else ():
            await records.position(partition)
        yield records


async def read_to_end(
    records: AIOKafkaConsumer, max_records: int | None = None
) -> AsyncIterator[dict[TopicPartition, list[ConsumerRecord]]]:
    """Yield polls (at most ``max_records`` each) of the assigned partitions up to their present end offsets."""
    ends = await records.end_offsets(sorted(records.assignment()))
    while not await has_reached(records, ends):
        yield await records.getmany(timeout_ms=POLL_TIMEOUT_MS, max_records=max_records)


async def has_reached(records: AIOKafkaConsumer, ends: Mapping[TopicPartition, int]) -> bool:
    """Return whether the consumer's positions are at or past these end offsets."""
    return all([await records.position(partition) >= end for partition, end in ends.items()])
