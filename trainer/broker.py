"""Synchronous Kafka clients (kafka-python): connected within the deadline of the configuration, topics known."""

import logging
import time
from typing import Any

import structlog
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from dart_streams.bus.admin import await_listener, no_broker
from dart_streams.config import Bus
from dart_streams.errors import ServiceUnavailable
from topics import Topic

RETRY_S = 0.2

log = structlog.get_logger()


def consumer(bus: Bus, client_id: str, **settings: Any) -> KafkaConsumer:
    """Return a consumer without partitions: it commits only when told to, and starts where it is told to.

    Raises
    ------
    ServiceUnavailable
        If no broker answers within ``bus.wait_s``.
    """
    defaults: dict[str, Any] = {"enable_auto_commit": False, "auto_offset_reset": "earliest", "fetch_max_wait_ms": 200}
    return _connected(KafkaConsumer, bus, client_id, {**defaults, **settings})


def producer(bus: Bus, client_id: str) -> KafkaProducer:
    """Return an idempotent producer, acknowledged by all replicas; raise :class:`ServiceUnavailable` as above."""
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


def assign_from_beginning(records: KafkaConsumer, bus: Bus, topic: Topic) -> list[TopicPartition]:
    """Assign all partitions of a topic, to be read whole, and return them."""
    places = partitions(records, bus, topic)
    records.assign(places)
    records.seek_to_beginning(*places)
    return places


def _connected(client: Any, bus: Bus, client_id: str, settings: dict[str, Any]) -> Any:
    # Its network thread complains whenever the training thread has held the interpreter for 0.1 s.
    logging.getLogger("kafka.net").setLevel(logging.ERROR)
    deadline = time.monotonic() + bus.wait_s
    await_listener(bus, deadline)
    try:
        return client(
            bootstrap_servers=bus.servers.split(","),
            client_id=client_id,
            bootstrap_timeout_ms=int(max(deadline - time.monotonic(), 1.0) * 1000),
            **settings,
        )
    except KafkaError as error:
        raise no_broker(bus, error) from None
