"""Reads a run's log, topic by topic: what the broker has now, or what a bundle has."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from dart_streams.bus import sync_clients
from dart_streams.bus.codec import Undecodable, decode
from dart_streams.config import Bus
from dart_streams.errors import UserError
from dart_streams.history.bundle import Bundle, BundleRecord
from dart_streams.history.records import LogRecord, headers_of, log_record
from topics import Topic


def read_log(source: Bus | Bundle, topics: Sequence[Topic]) -> Iterator[LogRecord]:
    """Yield the records of those of ``topics`` that there are; what does not decode is in the dead letters.

    Raises
    ------
    UserError
        If the broker has none of the topics.
    ServiceUnavailable
        If the broker stops answering.
    BundleError
        If the bundle is damaged.
    """
    for topic in existing(source, topics):
        for record in raw_records(source, topic):
            with contextlib.suppress(Undecodable):
                yield log_record(topic.name, record)


def read_events(source: Bus | Bundle, topics: Sequence[Topic]) -> Iterator[Any]:
    """Yield the events of those of ``topics`` that there are, decoded in full; raise as :func:`read_log`."""
    for topic in existing(source, topics):
        for record in raw_records(source, topic):
            with contextlib.suppress(Undecodable):
                yield decode(topic, record.value, headers_of(record))


def raw_records(source: Bus | Bundle, topic: Topic) -> Iterator[BundleRecord]:
    """Yield the encoded records of one topic, in order within a partition; raise as :func:`read_log`."""
    return source.records(topic.name) if isinstance(source, Bundle) else present_records(source, topic)


def existing(source: Bus | Bundle, topics: Sequence[Topic]) -> list[Topic]:
    """Return those of the topics that there are; raise :class:`UserError` if the broker has none of them."""
    if isinstance(source, Bundle):
        return [topic for topic in topics if source.has(topic.name)]
    with contextlib.closing(sync_clients.consumer(source, "history")) as client:
        there = client.topics()
    found = [topic for topic in topics if source.prefix + topic.name in there]
    if not found:
        raise UserError(
            f"the broker at {source.servers} has no topics {source.prefix}*: is this the run, and the broker it used?"
        )
    return found


def present_records(bus: Bus, topic: Topic, since_ms: int = 0) -> Iterator[BundleRecord]:
    """Yield the records that a topic has now, from a time on (epoch milliseconds).

    Raises
    ------
    ServiceUnavailable
        If the broker stops answering.
    """
    with sync_clients.TopicReader(bus, "history", topic, fetch_max_bytes=8 << 20, max_poll_records=2000) as reader:
        ends = reader.end_offsets()
        if since_ms:
            wanted = dict.fromkeys(reader.partitions, since_ms)
            for partition, found in reader.client.offsets_for_times(wanted).items():
                reader.client.seek(partition, ends[partition] if found is None else found.offset)
        limits = {partition.partition: end for partition, end in ends.items()}
        for record in reader.read_to_end({partition: end for partition, end in ends.items() if end}):
            if record.offset < limits[record.partition]:
                yield BundleRecord.of(record)
