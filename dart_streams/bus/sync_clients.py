"""Synchronous Kafka clients (kafka-python): connected within the deadline of the configuration, topics known."""

import logging
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import structlog
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from dart_streams.bus.readiness import await_broker, no_broker
from dart_streams.config import Bus
from dart_streams.connection import auth as access
from dart_streams.errors import ServiceUnavailable
from topics import Topic

RETRY_S = 0.2
CHECK_S = 10.0
POLL_MS = 200

log = structlog.get_logger()


def consumer(bus: Bus, client_id: str, **settings: Any) -> KafkaConsumer:
    """Return a consumer without partitions: it commits only when told to, and starts where it is told to.

    Raises
    ------
    ServiceUnavailable
        If no broker answers within ``bus.wait_s``.
    AccessRefused
        If one does, and does not let this side in.
    """
    defaults: dict[str, Any] = {"enable_auto_commit": False, "auto_offset_reset": "earliest", "fetch_max_wait_ms": 200}
    return _connected(KafkaConsumer, bus, client_id, {**defaults, **settings})


def producer(bus: Bus, client_id: str) -> KafkaProducer:
    """Return an idempotent producer, acknowledged by all replicas; raise as above."""
    return _connected(KafkaProducer, bus, client_id, {"acks": "all", "enable_idempotence": True, "linger_ms": 0})


def partitions(records: KafkaConsumer, bus: Bus, topic: Topic) -> list[TopicPartition]:
    """Return the partitions of a topic, waiting for it to appear; raise :class:`ServiceUnavailable` if it does not."""
    name = bus.prefix + topic.name
    deadline = time.monotonic() + bus.wait_s
    while not (numbers := records.partitions_for_topic(name)):
        if time.monotonic() >= deadline:
            raise ServiceUnavailable(
                f"the broker at {bus.servers} has no topic {name} after {bus.wait_s:g} s: "
                "create the topics with `dart-streams topics apply`, or check bus.prefix"
            )
        time.sleep(min(RETRY_S, bus.wait_s / 10))
    return [TopicPartition(name, number) for number in sorted(numbers)]


class Reader:
    """Reads all partitions of a topic, each from an offset on; use it as a context.

    A client of kafka-python 3.0 may stop fetching for ever, although the broker has records and answers. So, after
    ``CHECK_S`` without a record, the ends of the topic are compared with where the client is; one that is behind is
    replaced, and the new one goes on after the last record that was returned.

    Parameters
    ----------
    offsets
        Where to start, by partition; others start at their beginning, as do those whose records have been deleted.
    settings
        More settings of the client.
    """

    def __init__(
        self, bus: Bus, client_id: str, topic: Topic, offsets: Mapping[int, int] | None = None, **settings: Any
    ) -> None:
        self.bus = bus
        self.client_id = client_id
        self.topic = topic
        self.settings = settings
        self.next = dict(offsets or {})
        self.client = self._open()
        self._heard_s = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()

    def poll(self, timeout_ms: int) -> list[Any]:
        """Return the next records, in order within a partition; none if none came within ``timeout_ms``."""
        records = [record for batch in self.client.poll(timeout_ms=timeout_ms).values() for record in batch]
        for record in records:
            self.next[record.partition] = record.offset + 1
        now = time.monotonic()
        if records:
            self._heard_s = now
        elif now - self._heard_s >= CHECK_S:
            self._heard_s = now
            self._check()
        return records

    def ends(self) -> dict[TopicPartition, int]:
        """Return the offset after the last record of each partition; raise ``KafkaError`` if the broker is away."""
        ends: dict[TopicPartition, int] = self.client.end_offsets(self.places)
        return ends

    def reached(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Return whether all records before ``ends`` have been read."""
        return all(self.client.position(place) >= end for place, end in ends.items())

    def rest(self) -> Iterator[Any]:
        """Yield the records up to the present end; raise ``ServiceUnavailable`` if that takes over ``bus.wait_s``."""
        deadline = time.monotonic() + self.bus.wait_s
        ends = self.ends()
        while not self.reached(ends):
            if time.monotonic() >= deadline:
                raise ServiceUnavailable(
                    f"{self.bus.prefix}{self.topic.name} was not read to its end in {self.bus.wait_s:g} s: "
                    "is Kafka well?"
                )
            yield from self.poll(POLL_MS)

    def _check(self) -> None:
        try:
            if self.reached(self.ends()):
                return
        except KafkaError as error:
            log.warning("no answer about a topic's end", topic=self.topic.name, why=str(error))
            return
        log.warning("a client stands still before the end of its topic; another takes over", topic=self.topic.name)
        old, self.client = self.client, self._open()
        old.close()

    def _open(self) -> KafkaConsumer:
        client = consumer(self.bus, self.client_id, **self.settings)
        try:
            self.places = partitions(client, self.bus, self.topic)
            client.assign(self.places)
            for place, kept in client.beginning_offsets(self.places).items():
                wanted = self.next.get(place.partition, 0)
                if 0 < wanted < kept:
                    log.warning("records lost to retention", topic=place.topic, from_offset=wanted, to_offset=kept)
                client.seek(place, max(wanted, kept))
        except BaseException:
            client.close()
            raise
        return client


def _connected(client: Any, bus: Bus, client_id: str, settings: dict[str, Any]) -> Any:
    # Its network thread complains whenever the training thread has held the interpreter for 0.1 s.
    logging.getLogger("kafka.net").setLevel(logging.ERROR)
    deadline = time.monotonic() + bus.wait_s
    await_broker(bus, deadline)
    try:
        return client(
            **access.kafka(bus),
            client_id=client_id,
            bootstrap_timeout_ms=int(max(deadline - time.monotonic(), 1.0) * 1000),
            **settings,
        )
    except KafkaError as error:
        raise no_broker(bus, error) from None
