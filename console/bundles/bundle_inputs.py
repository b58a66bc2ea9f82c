"""Reads a bundle's configuration, task set and events."""

import tomllib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from console.runs.bundle import Bundle, BundleError, BundleTooLarge
from console.runs.run_folder import PhaseLog
from console.runs.run_log import full_event
from console.runs.token_texts import Pieces, parse_stored, read_pieces
from dart_streams import config as configuration
from dart_streams.bus.codec import Undecodable
from dart_streams.config import Config
from dart_streams.config import tasks as task_sets
from dart_streams.config.recipes import override_tables
from dart_streams.config.recorded import upgrade_recorded
from dart_streams.config.tables import parse_settings
from dart_streams.config.tasks import TaskSet
from dart_streams.config.text import MALFORMED
from topics import Topic

CONFIG, TASKS = "config.toml", "tasks.toml"
FILES = "file:"
"""Beginning of the names of sections with a file of the run's folder."""
JOURNAL = f"{FILES}journal.json"
TOKENS = "tokens.json"
"""The bytes of each token that the run's answers have."""
MOST_TOML = {CONFIG: 1 << 18, TASKS: 1 << 22}
"""Characters of a TOML file, which takes 60 times as much memory."""
MOST_DOTS = 200
"""Dots of a line: memory grows with the square of a key's parts."""


def config_of(bundle: Bundle, settings: Sequence[str] = ()) -> Config:
    """Return the run's configuration, with ``key=value`` settings over it; raise ConfigError for an invalid one."""
    tables = upgrade_recorded(tables_of(bundle, CONFIG), f"{bundle.path}: {CONFIG}")
    tables = override_tables(tables, parse_settings(settings))
    return configuration.parse(tables, source=" ".join(settings) or f"{bundle.path}: {CONFIG}")


def tasks_of(bundle: Bundle) -> TaskSet:
    """Return the run's task set."""
    return task_sets.parse(tables_of(bundle, TASKS), f"{bundle.path}: {TASKS}")


def captured_journal(bundle: Bundle) -> PhaseLog | None:
    """Return the run's journal, its outcome ``recorded`` if the run had not ended; None for a bundle without one."""
    if not bundle.has(JOURNAL):
        return None
    try:
        journal = msgspec.json.decode(bundle.file(JOURNAL), type=PhaseLog)
    except MALFORMED as error:
        raise BundleError(f"{bundle.path}: {JOURNAL} is damaged ({error}): capture the run again") from None
    return msgspec.structs.replace(journal, outcome="recorded") if journal.outcome == "unfinished" else journal


def pieces_of(bundle: Bundle) -> Pieces:
    """Return the pieces of the run's tokens: those that the bundle carries, else those of its model on this machine."""
    if not bundle.has(TOKENS):
        return read_pieces(config_of(bundle), tasks_of(bundle))
    try:
        return parse_stored(bundle.text(TOKENS))
    except MALFORMED as error:
        raise BundleError(f"{bundle.path}: {TOKENS} is damaged ({error}): capture the run again") from None


def tables_of(bundle: Bundle, name: str) -> dict[str, Any]:
    """Return a TOML file of a bundle; raise :class:`BundleError` if it can't be parsed, or is too large to be."""
    text = bundle.text(name)
    if len(text) > MOST_TOML[name] or any(line.count(".") > MOST_DOTS for line in text.splitlines()):
        raise BundleTooLarge(f"{bundle.path}: {name} has over {MOST_TOML[name]} characters, or {MOST_DOTS} dots a line")
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise BundleError(f"{bundle.path}: {name} is not TOML ({error}): capture the run again") from None


def bundle_events(bundle: Bundle, topic: Topic) -> Iterator[Any]:
    """Yield a topic's events; raise :class:`BundleError` if a record can't be decoded."""
    for record in bundle.records(topic.name):
        try:
            yield full_event(topic.name, record)
        except Undecodable as error:
            place = f"{topic.name}[{record.partition}]@{record.offset}"
            raise BundleError(f"{bundle.path}: {place}: {error}") from None
