"""Publishes a bundle's records into new or empty shadow topics; keys, partitions, order and headers stay."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
from kafka import TopicPartition
from kafka.errors import KafkaError

from console.runs.bundle import Bundle, BundleError, BundleRecord
from dart_streams.bus import admin, sync_clients
from dart_streams.bus.topology import NO_BOUND_MS, TopicSpec, clock_bounds, find_topic, spec_of
from dart_streams.config import Bus
from dart_streams.errors import ServiceUnavailable, UserError
from topics import BY_NAME, Topic

SEND_TIMEOUT_S = 30.0
IN_FLIGHT = 1000
NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


class TimeSpan(msgspec.Struct, frozen=True):
    """Bounds on records, inclusive and exclusive, as offsets or, with ``timed``, epoch milliseconds."""

    from_: int | None = None
    until: int | None = None
    timed_from: bool = False
    timed_until: bool = False

    def has(self, record: BundleRecord) -> bool:
        """Return whether a record is within the bounds."""
        after = self.from_ is None or (record.at_ms if self.timed_from else record.offset) >= self.from_
        before = self.until is None or (record.at_ms if self.timed_until else record.offset) < self.until
        return after and before


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """Number of records of a topic that were published to topic ``to``; ``moved`` have another offset there."""

    topic: str
    to: str
    records: int
    moved: int


def check_topics(bundle: Bundle, bus: Bus, topics: Sequence[Topic], *, own: bool = False) -> list[TopicSpec]:
    """Return the topics to make under ``bus.prefix``, that of shadow topics, or with ``own`` the run's.

    Raises UserError if the prefix is live or invalid, or if bundle or deployment lack a topic or its partitions.
    """
    for topic in topics:
        if not bundle.has(topic.name):
            raise BundleError(f"{bundle.path} has no {topic.name}: it has {', '.join(bundle.topics())}")
    specs = shadow_topics(bundle, bus, topics)
    raise_if_live(bundle, bus, own=own)
    return specs


def republish(
    bundle: Bundle, bus: Bus, topics: Sequence[Topic], specs: list[TopicSpec], span: TimeSpan, speed: float | None
) -> list[Published]:
    """Make the topics of ``check_topics`` and publish their records in order of time.

    ``speed`` is a multiple of the recorded one; None is as fast as possible. Raises ServiceUnavailable if the broker
    does not answer.
    """
    with admin.connect(bus) as client:
        admin.apply(client, admin.plan_against(client, specs))
    counts = dict.fromkeys((topic.name for topic in topics), 0)
    moved = Counter[str]()
    producer = sync_clients.create_producer(bus, "replay")
    try:
        sent: list[SentRecord] = []
        for name, record in pace_records(in_order(bundle, topics, span), speed):
            future = producer.send(
                bus.prefix + name,
                value=record.value,
                key=record.key,
                headers=record.headers,
                partition=record.partition,
                timestamp_ms=record.at_ms,
            )
            sent.append(SentRecord(name, record.offset, future))
            counts[name] += 1
            if len(sent) >= IN_FLIGHT:
                moved.update(flush(sent, bus))
        moved.update(flush(sent, bus))
    finally:
        producer.close(timeout=SEND_TIMEOUT_S)
    return [Published(topic=name, to=bus.prefix + name, records=counts[name], moved=moved[name]) for name in counts]


class SentRecord(NamedTuple):
    """A record under way, with its recorded offset."""

    topic: str
    offset: int
    acknowledged: Any


def flush(sent: list[SentRecord], bus: Bus) -> list[str]:
    """Wait until the broker has acknowledged all records; return the topic of each with another offset."""
    try:
        moved = [one.topic for one in sent if one.acknowledged.get(timeout=SEND_TIMEOUT_S).offset != one.offset]
    except KafkaError as error:
        raise ServiceUnavailable(f"the broker at {bus.servers} rejected a record ({error})") from None
    sent.clear()
    return moved


def pace_records(
    records: Iterable[tuple[str, BundleRecord]],
    speed: float | None,
    wait: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[tuple[str, BundleRecord]]:
    """Yield records when they are due, at a multiple of their recorded rate from the first record on."""
    start_ms, started_s = None, clock()
    for name, record in records:
        if speed is not None:
            if start_ms is None:
                start_ms, started_s = record.at_ms, clock()
            if (left_s := started_s + (record.at_ms - start_ms) / 1000 / speed - clock()) > 0:
                wait(left_s)
        yield name, record


def in_order(bundle: Bundle, topics: Sequence[Topic], span: TimeSpan) -> Iterator[tuple[str, BundleRecord]]:
    """Yield the records of several topics merged by time, in order within a partition."""

    def of(name: str) -> Iterator[tuple[int, str, BundleRecord]]:
        newest: dict[int, int] = {}
        for record in bundle.records(name):
            # A partition's times may go back.
            at_ms = newest[record.partition] = max(record.at_ms, newest.get(record.partition, 0))
            if span.has(record):
                yield at_ms, name, record

    for _, name, record in merge(*(of(topic.name) for topic in topics), key=itemgetter(0)):
        yield name, record


def raise_if_live(bundle: Bundle, bus: Bus, *, own: bool = False) -> None:
    """Raise :class:`UserError` if the prefix is the run's (but with ``own``), invalid, or of topics with records."""
    prefix = bus.prefix
    if not prefix or not set(prefix) <= NAME:
        raise UserError(f"{prefix!r} is no prefix for topics: use letters, digits, '.', '_' and '-'")
    if prefix == bundle.manifest.prefix and not own:
        raise UserError(f"{prefix!r} is the prefix of the run itself: choose another one, such as shadow.{prefix}")
    with contextlib.closing(sync_clients.create_consumer(bus, "replay")) as client:
        for name in sorted(name for name in client.topics() if name.startswith(prefix)):
            places = [TopicPartition(name, number) for number in client.partitions_for_topic(name) or ()]
            if any(client.end_offsets(places).values()):
                advice = "restore into a broker without this run" if own else "choose a prefix that nothing uses"
                raise UserError(f"{prefix!r} is a live prefix: {name} has records. Replay writes new topics: {advice}")


def shadow_topics(bundle: Bundle, bus: Bus, topics: Sequence[Topic]) -> list[TopicSpec]:
    """Return the shadow topics as the deployment declares them, but without retention, as records are old.

    Raises UserError for a record of a partition that the deployment does not have: a bundle may name any number.
    """
    specs: list[TopicSpec] = []
    for topic in topics:
        spec = spec_of(topic, bus)
        needed = max((record.partition for record in bundle.records(topic.name)), default=0) + 1
        of_any_time = {"retention.ms": "-1", **clock_bounds(NO_BOUND_MS)}
        if needed > spec.partitions:
            key = "set bus.topics.partitions" if topic.shared else "this topic can't have more, so leave it out"
            raise UserError(
                f"{bundle.path} has {topic.name} in {needed} partitions, and this deployment {spec.partitions}: {key}"
            )
        configs = {**spec.configs, "cleanup.policy": "delete", **of_any_time}
        specs.append(msgspec.structs.replace(spec, configs=configs))
    return specs


def choose_topics(bundle: Bundle, names: Sequence[str]) -> list[Topic]:
    """Return the named topics, by default all of the contract that the bundle has."""
    wanted = list(names) or [name for name in bundle.topics() if name in BY_NAME]
    return [find_topic(name) for name in wanted]
