"""A bundle as the data manager's inputs: configuration, task set, records, decisions and curation log."""

import tomllib
from collections.abc import Iterator, Sequence
from typing import Any

import topics
from dart_streams import config as configuration
from dart_streams import tasks as task_sets
from dart_streams.bus.codec import ID, Undecodable, decode, header
from dart_streams.config import Config
from dart_streams.config.files import migrated
from dart_streams.errors import ConfigError
from dart_streams.history.bundle import Bundle, BundleError, BundleRecord
from dart_streams.history.records import headers_of
from dart_streams.tasks import TaskSet
from topics import curation_log
from topics.curation_log import Applied

CONFIG, TASKS = "config.toml", "tasks.toml"
Place = tuple[int, int]
"""Partition and offset."""


def config_of(bundle: Bundle, settings: Sequence[str] = ()) -> Config:
    """Return the configuration that the run had, with ``key=value`` settings over it.

    Raises
    ------
    ConfigError
        If a key is unknown or a value is not one of its kind.
    """
    tables = migrated(tomllib.loads(bundle.text(CONFIG)), f"{bundle.path}: {CONFIG}")
    for setting in settings:
        set_key(tables, setting)
    return configuration.parse(tables, source=" ".join(settings) or f"{bundle.path}: {CONFIG}")


def set_key(tables: dict[str, Any], setting: str) -> None:
    """Set one key, for instance ``curation.entropy.keep=0.5``, in nested tables."""
    place, equals, text = setting.partition("=")
    *sections, key = place.strip().split(".")
    if not equals or not all([*sections, key]):
        raise ConfigError(f"{setting!r} is no setting: give key=value, for instance curation.entropy.keep=0.5")
    for section in sections:
        tables = tables.setdefault(section, {})
        if not isinstance(tables, dict):
            raise ConfigError(f"{setting!r}: {section!r} is a value, not a table")
    tables[key] = value_of(text.strip())


def value_of(text: str) -> Any:
    """Return a TOML value; what is none is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def tasks_of(bundle: Bundle) -> TaskSet:
    """Return the task set that the run had."""
    return task_sets.parse(tomllib.loads(bundle.text(TASKS)), f"{bundle.path}: {TASKS}")


def entries(bundle: Bundle) -> Iterator[Applied]:
    """Yield the curation log, each entry once: one may have been published again around a crash."""
    seen: set[tuple[str, str, int, int]] = set()
    for record in bundle.records(curation_log.TOPIC.name):
        entry: Applied = event_of(bundle, curation_log.TOPIC.name, record)
        key = (entry.agent, entry.source.topic, entry.source.partition, entry.source.offset)
        if key not in seen:
            seen.add(key)
            yield entry


def inputs(bundle: Bundle, topic: str) -> dict[Place, BundleRecord]:
    """Return a topic's records by place."""
    return {(record.partition, record.offset): record for record in bundle.records(topic)}


def published(bundle: Bundle, topic: str) -> dict[str, bytes | None]:
    """Return the values of a topic by record id; of a decision published twice the first."""
    found: dict[str, bytes | None] = {}
    for record in bundle.records(topic):
        found.setdefault(id_of(record), record.value)
    return found


def id_of(record: BundleRecord) -> str:
    """Return a record's ``id`` header, empty if it has none."""
    return (header(headers_of(record), ID) or b"").decode(errors="replace")


def event_of(bundle: Bundle, topic: str, record: BundleRecord) -> Any:
    """Return the event of a record; raise :class:`BundleError` if it is of a newer schema, or none."""
    try:
        return decode(topics.BY_NAME[topic], record.value, headers_of(record))
    except Undecodable as error:
        raise BundleError(f"{bundle.path}: {topic}[{record.partition}]@{record.offset}: {error}") from None
