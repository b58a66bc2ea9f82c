"""Topics as code, the pure part: what is declared, what is there, and the changes between the two."""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

import topics
from dart_streams.config import Bus
from dart_streams.errors import UserError
from topics import Topic
from topics.topic import DAY_MS

DEAD_LETTERS = ".dlq"
DEAD_LETTER_DAYS = 90
HEADER_ROOM = 65_536
"""Bytes by which a dead letter may exceed its original: the error and its place travel in headers."""


class TopicSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as a broker keeps it, under its full name; ``configs`` in the broker's own words."""

    name: str
    partitions: int = 1
    configs: dict[str, str] = {}


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to do to one topic; ``shrink`` is what is declared and can't be done."""

    topic: str
    action: Literal["create", "add partitions", "alter", "shrink"]
    before: dict[str, str]
    after: dict[str, str]


def named(name: str) -> Topic:
    """Return the topic of this name (without a prefix); raise :class:`UserError` if the contract has none such."""
    if name not in topics.BY_NAME:
        raise UserError(f"no topic {name!r}: there are {', '.join(topics.BY_NAME)}")
    return topics.BY_NAME[name]


def declared(bus: Bus, extra: Sequence[TopicSpec] = ()) -> list[TopicSpec]:
    """Return every topic of a deployment: the contract's and their dead letters, under its prefix, then ``extra``.

    The weights have no dead letters: a worker that can't read a version says so on ``weights-serving``.
    """
    specs = []
    for topic in topics.ALL:
        specs.append(spec_of(topic, bus.prefix))
        if topic is not topics.weights.TOPIC:
            specs.append(dead_letters_of(topic, bus.prefix))
    return [*specs, *extra]


def spec_of(topic: Topic, prefix: str) -> TopicSpec:
    """Return how the broker is to keep ``topic``."""
    return TopicSpec(
        name=prefix + topic.name,
        partitions=topic.partitions,
        configs={
            "cleanup.policy": topic.cleanup,
            "retention.ms": "-1" if topic.retention_ms is None else str(topic.retention_ms),
            "max.message.bytes": str(topic.max_message_bytes),
        },
    )


def dead_letters_of(topic: Topic, prefix: str) -> TopicSpec:
    """Return how the broker is to keep the dead letters of ``topic``."""
    return TopicSpec(
        name=prefix + topic.name + DEAD_LETTERS,
        configs={
            "cleanup.policy": "delete",
            "retention.ms": str(DEAD_LETTER_DAYS * DAY_MS),
            "max.message.bytes": str(topic.max_message_bytes + HEADER_ROOM),
        },
    )


def plan(wanted: Sequence[TopicSpec], actual: Mapping[str, TopicSpec]) -> list[Change]:
    """Return what makes ``actual`` (by name) as ``wanted``; nothing if it is. Topics not wanted are left alone."""
    return [change for spec in wanted for change in changes_of(spec, actual.get(spec.name))]


def changes_of(wanted: TopicSpec, actual: TopicSpec | None) -> list[Change]:
    """Return what makes one topic as wanted."""
    if actual is None:
        after = {"partitions": str(wanted.partitions), **wanted.configs}
        return [Change(topic=wanted.name, action="create", before={}, after=after)]
    changes = []
    if wanted.partitions != actual.partitions:
        changes.append(
            Change(
                topic=wanted.name,
                action="add partitions" if wanted.partitions > actual.partitions else "shrink",
                before={"partitions": str(actual.partitions)},
                after={"partitions": str(wanted.partitions)},
            )
        )
    different = {key: value for key, value in wanted.configs.items() if actual.configs.get(key) != value}
    if different:
        before = {key: actual.configs.get(key, "") for key in different}
        changes.append(Change(topic=wanted.name, action="alter", before=before, after=different))
    return changes
