"""Synchronous Kafka clients (kafka-python), connected within ``bus.wait_s``, and a reader of whole topics."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self, TypeVar

import kafka.consumer.fetcher
import structlog
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError, RetriableError
from kafka.net.transport import KafkaTCPTransport

from dart_streams.bus import compressed_batches
from dart_streams.bus.codec import Undecodable, decode
from dart_streams.bus.readiness import await_broker, no_broker
from dart_streams.bus.topic_watch import gone_error
from dart_streams.bus.topology import MAX_LETTER_BYTES
from dart_streams.config import Bus
from dart_streams.connection import auth
from dart_streams.deadline import Deadline
from dart_streams.errors import ServiceUnavailable
from topics import Topic

RETRY_INTERVAL_S = 0.2
CHECK_INTERVAL_S = 10.0
POLL_TIMEOUT_MS = 200
FETCH_WAIT_MS = 500

log = structlog.get_logger()
T = TypeVar("T")


def create_consumer(bus: Bus, client_id: str, **settings: Any) -> KafkaConsumer:
    """Return a consumer without an assignment or automatic commits.

    Raises :class:`ServiceUnavailable` if no broker answers within ``bus.wait_s``, and ``AccessRefused`` if one rejects
    the client or is not trusted.
    """
    compressed_batches.limit_fetches(kafka.consumer.fetcher)
    defaults: dict[str, Any] = {
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "fetch_max_wait_ms": FETCH_WAIT_MS,
    }
    return connect(KafkaConsumer, bus, client_id=client_id, **{**defaults, **settings})


def create_producer(bus: Bus, client_id: str, *, idempotent: bool = True) -> KafkaProducer:
    """Return a producer acknowledged by all replicas; raise as :func:`create_consumer` does.

    An idempotent producer of kafka-python stops sending once the broker refuses a record, for its size for example.
    """
    settings = {"acks": "all", "enable_idempotence": idempotent, "linger_ms": 0, "max_request_size": MAX_LETTER_BYTES}
    return connect(KafkaProducer, bus, client_id=client_id, **settings)


def connect(client: Any, bus: Bus, **settings: Any) -> Any:
    """Return a client of kafka-python once a broker is ready; raise as :func:`create_consumer` does."""
    # Its network thread warns whenever the training thread has held the interpreter for 0.1 s.
    logging.getLogger("kafka.net").setLevel(logging.ERROR)
    logging.getLogger("kafka.net.transport").addFilter(is_of_an_open_connection)
    deadline = Deadline(bus.wait_s)
    await_broker(bus, deadline)
    timeout_ms = int(max(deadline.remaining_s, 1.0) * 1000)
    try:
        return client(**auth.kafka_arguments(bus), bootstrap_timeout_ms=timeout_ms, **settings)
    except KafkaError as error:
        raise no_broker(bus, error) from None


def is_of_an_open_connection(record: logging.LogRecord) -> bool:
    """Return whether a transport's log record concerns a connection that is not closing.

    The reader may wake once after a close, and logs the missing socket with a traceback.
    """
    match record.args:
        case (KafkaTCPTransport() as connection, *_):
            return not connection.is_closing()
    return True


def ask_until_answered(ask: Callable[[], T], bus: Bus) -> T:
    """Return the result of ``ask``, retried while the broker cannot answer.

    A broker paused beyond its session names no brokers until it has registered again. Raises
    :class:`ServiceUnavailable` after ``bus.wait_s``.
    """
    deadline = Deadline(bus.wait_s)
    while True:
        try:
            return ask()
        except RetriableError as error:
            if deadline.expired:
                raise no_broker(bus, error) from None
        time.sleep(min(RETRY_INTERVAL_S, bus.wait_s / 10))


def await_partitions(records: KafkaConsumer, bus: Bus, topic: Topic) -> list[TopicPartition]:
    """Return a topic's partitions once it exists; raise :class:`ServiceUnavailable` if it does not appear."""
    name = bus.prefix + topic.name
    deadline = Deadline(bus.wait_s)
    while not (numbers := ask_until_answered(lambda: records.partitions_for_topic(name), bus)):
        if deadline.expired:
            raise ServiceUnavailable(
                f"the broker at {bus.servers} has no topic {name} after {bus.wait_s:g} s: "
                "create the topics with `dart-streams topics apply`, or check bus.prefix"
            )
        time.sleep(min(RETRY_INTERVAL_S, bus.wait_s / 10))
    return [TopicPartition(name, number) for number in sorted(numbers)]


class TopicReader:
    """Reads all partitions of a topic without a consumer group; a context manager.

    A client of kafka-python 3.0 may stop fetching forever. After ``CHECK_INTERVAL_S`` without a record its positions
    are compared with the end offsets; a client that is behind is replaced and continues after the last returned record.

    ``offsets`` are start offsets by partition; others, and those already deleted, start at the beginning. ``settings``
    go to the client.
    """

    def __init__(
        self, bus: Bus, client_id: str, topic: Topic, offsets: Mapping[int, int] | None = None, **settings: Any
    ) -> None:
        self.bus = bus
        self.client_id = client_id
        self.topic = topic
        self.settings = settings
        self.positions = dict(offsets or {})
        self.client = self._open()
        self._until_check = Deadline(CHECK_INTERVAL_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def poll(self, timeout_ms: int) -> list[Any]:
        """Return the next records, in order within a partition; empty after ``timeout_ms``."""
        records = [record for batch in self.client.poll(timeout_ms=timeout_ms).values() for record in batch]
        for record in records:
            self.positions[record.partition] = record.offset + 1
        if records or self._until_check.expired:
            if not records:
                self._replace_if_stuck()
            self._until_check = Deadline(CHECK_INTERVAL_S)
        return records

    def end_offsets(self) -> dict[TopicPartition, int]:
        """Return the end offset of each partition; raise ``KafkaError`` without an answer."""
        ends: dict[TopicPartition, int] = self.client.end_offsets(self.partitions)
        return ends

    def has_reached(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Return whether all records before ``ends`` were read."""
        return all(self.client.position(partition) >= end for partition, end in ends.items())

    def read_to_end(self, ends: Mapping[TopicPartition, int] | None = None) -> Iterator[Any]:
        """Yield the records up to ``ends`` (by default the present end offsets); the last poll may return more.

        Raises :class:`ServiceUnavailable` if the broker does not answer, or no record arrives, for ``bus.wait_s`` or
        the time to replace a stuck client.
        """
        ends = ask_until_answered(self.end_offsets, self.bus) if ends is None else ends
        limit_s = max(self.bus.wait_s, 2 * CHECK_INTERVAL_S)
        deadline = Deadline(limit_s)
        while not self.has_reached(ends):
            records = self.poll(POLL_TIMEOUT_MS)
            yield from records
            # New records of one partition are no progress of another, which may be without a leader.
            if any(record.offset < ends.get(TopicPartition(record.topic, record.partition), 0) for record in records):
                deadline = Deadline(limit_s)
            elif deadline.expired:
                name = self.bus.prefix + self.topic.name
                raise ServiceUnavailable(f"no record of {name} arrived for {limit_s:g} s: see `dart-streams doctor`")

    def events_to_end(self) -> Iterator[Any]:
        """Yield the events of :meth:`read_to_end`, without undecodable records."""
        for record in self.read_to_end():
            with contextlib.suppress(Undecodable):
                yield decode(self.topic, record.value, record.headers)

    def _replace_if_stuck(self) -> None:
        try:
            if self.bus.prefix + self.topic.name not in self.client.topics():
                raise gone_error(self.bus, self.topic.name)
            if self.has_reached(self.end_offsets()):
                return
        except KafkaError as error:
            log.warning("no answer about end offsets", topic=self.topic.name, reason=str(error))
            return
        log.warning("consumer has stopped before the end of its topic; replaced", topic=self.topic.name)
        old, self.client = self.client, self._open()
        old.close()

    def _open(self) -> KafkaConsumer:
        client = create_consumer(self.bus, self.client_id, **self.settings)
        try:
            self.partitions = await_partitions(client, self.bus, self.topic)
            client.assign(self.partitions)
            begins = ask_until_answered(lambda: client.beginning_offsets(self.partitions), self.bus)
            for partition, earliest in begins.items():
                wanted = self.positions.get(partition.partition, 0)
                if 0 < wanted < earliest:
                    lost = {"from_offset": wanted, "to_offset": earliest}
                    log.warning("records lost to retention", topic=partition.topic, **lost)
                client.seek(partition, max(wanted, earliest))
        except BaseException:
            client.close()
            raise
        return client


def read_events(bus: Bus, client_id: str, topic: Topic) -> list[Any]:
    """Return all present events of a topic; raise as :meth:`TopicReader.read_to_end` does."""
    with TopicReader(bus, client_id, topic) as reader:
        return list(reader.events_to_end())
