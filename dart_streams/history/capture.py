"""Captures a run: its topics, configuration, task set and, if asked for, screenshots, into a bundle.

The curation log's end is taken first. An agent logs an input after it has read it, so whatever that part of the log
names is in the other topics by the time theirs are taken.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import tomli_w

from dart_streams.bus import sync_clients
from dart_streams.bus.topology import named
from dart_streams.clock import now_ms
from dart_streams.config import Bus, Config
from dart_streams.errors import UserError
from dart_streams.history.bundle import Blob, BundleRecord, BundleSection, Manifest, Writer
from dart_streams.history.bundle_inputs import CONFIG, TASKS
from dart_streams.history.run_folder import without_nulls
from dart_streams.history.span_index import lines_in
from dart_streams.store import MissingBlob, SyncStore
from topics import ALL, Topic, curation_log, observations
from topics.values import BlobRef

TRACES = "traces"
AT_ONCE = 32
"""Screenshots read from the store at a time."""
ORDER = (curation_log.TOPIC, *(topic for topic in ALL if topic is not curation_log.TOPIC))


class Shown(msgspec.Struct):
    """The part of an observation that names its screenshot."""

    screenshot: BlobRef | None = None


_shown = msgspec.json.Decoder(Shown)


def capture(
    config: Config,
    path: Path,
    topics: Sequence[Topic],
    store: SyncStore | None = None,
    traces: Path | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> list[BundleSection]:
    """Write what the topics have now, the spans in ``traces``, and with a ``store`` the screenshots observed.

    Raises
    ------
    ServiceUnavailable
        If the broker, or the database, does not answer.
    UserError
        If there are no such topics, or a screenshot is not in the store. Nothing is left behind then.
    """
    chosen = existing(config.bus, [topic for topic in ORDER if topic in topics])
    manifest = Manifest(
        run=config.bus.run,
        prefix=config.bus.prefix,
        captured_ms=now_ms(),
        schemas={topic.name: topic.version for topic in chosen},
    )
    refs: dict[str, BlobRef] = {}
    with Writer(path, manifest) as bundle:
        bundle.text(CONFIG, tomli_w.dumps(without_nulls(msgspec.to_builtins(config))))
        bundle.text(TASKS, Path(config.tasks.file).read_text())
        for topic in chosen:
            records = now_in(config.bus, topic)
            section = bundle.records(
                topic.name, noting(records, refs) if store and topic is observations.TOPIC else records
            )
            tell(f"{topic.name}: {section.items} records")
        if traces is not None and traces.is_dir():
            tell(f"spans: {bundle.section(TRACES, 'lines', lines_in(traces)).items}")
        if store:
            section = bundle.blobs(blobs(store, list(refs.values())))
            tell(f"screenshots: {section.items}")
    return bundle.sections


def existing(bus: Bus, topics: Sequence[Topic]) -> list[Topic]:
    """Return those of the topics that the broker has; raise :class:`UserError` if it has none of them."""
    client = sync_clients.consumer(bus, "capture")
    try:
        there = client.topics()
    finally:
        client.close()
    found = [topic for topic in topics if bus.prefix + topic.name in there]
    if not found:
        raise UserError(
            f"the broker at {bus.servers} has no topics {bus.prefix}*: is this the run, and the broker it used?"
        )
    return found


def now_in(bus: Bus, topic: Topic) -> Iterator[BundleRecord]:
    """Yield the records that a topic has now; raise :class:`ServiceUnavailable` if the broker stops answering."""
    with sync_clients.TopicReader(bus, "capture", topic, fetch_max_bytes=8 << 20, max_poll_records=2000) as reader:
        ends = reader.end_offsets()
        limits = {partition.partition: end for partition, end in ends.items()}
        for record in reader.read_to_end(ends):
            if record.offset < limits[record.partition]:
                yield BundleRecord.of(record)


def noting(records: Iterator[BundleRecord], refs: dict[str, BlobRef]) -> Iterator[BundleRecord]:
    """Pass observations on and note the screenshots that they show."""
    for record in records:
        try:
            ref = _shown.decode(record.value or b"{}").screenshot
        except msgspec.DecodeError:
            ref = None
        if ref is not None:
            refs[ref.sha256] = ref
        yield record


def blobs(store: SyncStore, refs: Sequence[BlobRef]) -> Iterator[Blob]:
    """Yield screenshots from the store; raise :class:`UserError` that names the first one missing."""
    for start in range(0, len(refs), AT_ONCE):
        try:
            found = store.get_blobs(refs[start : start + AT_ONCE])
        except MissingBlob as missing:
            raise UserError(f"{missing}: capture without --blobs, or from a store that has it") from None
        for sha256, data in found.items():
            yield Blob(sha256, data)


def chosen(names: Sequence[str]) -> list[Topic]:
    """Return topics by name, all of them if none is named; raise :class:`UserError` for one that is none."""
    return [named(name) for name in names] or list(ALL)
