"""Topics as code, the pure part: declared and actual topics, the changes between them, and Strimzi's resources."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

import topics
from dart_streams.config import Bus
from dart_streams.errors import UserError
from topics import Topic
from topics.topic import DAY_MS, HOUR_MS

DEAD_LETTERS = ".dlq"
DEAD_LETTER_DAYS = 90
HEADER_ROOM = 65_536
"""Allowance for key, headers and batch beside a record's value, and beside the original in a dead letter."""
CLOCK_MS = HOUR_MS
"""Maximum offset of record timestamps from the broker's clock, unless retention is shorter."""
NO_BOUND_MS = 2**63 - 1
"""Bound that accepts any timestamp."""
MAX_RESOURCE_NAME = 253
RESOURCE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""A valid Kubernetes resource name: a DNS subdomain (RFC 1123)."""
DIGEST_DIGITS = 8


class TopicSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A topic by full name, with the broker's configuration keys.

    Without ``replicas`` it has the broker's ``default.replication.factor``. A ``shared`` one may have more partitions
    than declared.
    """

    name: str
    partitions: int = 1
    replicas: int = 0
    shared: bool = False
    configs: dict[str, str] = {}


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A change of one topic; Kafka can neither ``shrink`` one nor give it other ``replicas`` (its tools can)."""

    topic: str
    action: Literal["create", "add partitions", "alter", "shrink", "replicas"]
    before: dict[str, str]
    after: dict[str, str]


def find_topic(name: str) -> Topic:
    """Return the topic ``name`` (without prefix); raise :class:`UserError` if the contract has none."""
    if name not in topics.BY_NAME:
        raise UserError(f"no topic {name!r}: use one of {', '.join(topics.BY_NAME)}")
    return topics.BY_NAME[name]


def declare_topics(bus: Bus, extra: Sequence[TopicSpec] = ()) -> list[TopicSpec]:
    """Return all topics of a deployment: the contract's, their dead letters, then ``extra``.

    Weights have no dead letters: a worker reports an unreadable version on ``weights-serving``.
    """
    specs = []
    for topic in topics.ALL:
        specs.append(spec_of(topic, bus))
        if has_dead_letters(topic):
            specs.append(dead_letters_of(topic, bus))
    specs += [msgspec.structs.replace(spec, replicas=bus.topics.replicas) for spec in extra]
    return [msgspec.structs.replace(spec, configs={**spec.configs, **in_sync(spec.replicas)}) for spec in specs]


def in_sync(replicas: int) -> dict[str, str]:
    """Return the broker's key for the copies that a record has when it is acknowledged.

    One copy may be away: of three, two acknowledge. Without declared replicas the broker's default stands.
    """
    return {"min.insync.replicas": str(max(1, replicas - 1))} if replicas else {}


def has_dead_letters(topic: Topic) -> bool:
    """Return whether a topic has a dead-letter twin."""
    return topic is not topics.weights.TOPIC


def spec_of(topic: Topic, bus: Bus) -> TopicSpec:
    """Return the declared state of ``topic``."""
    retention_ms = int(bus.topics.retention_hours.get(topic.name, 0) * HOUR_MS) or None
    return TopicSpec(
        name=bus.prefix + topic.name,
        partitions=(bus.topics.partitions if topic.shared else None) or topic.partitions,
        replicas=bus.topics.replicas,
        shared=topic.shared,
        configs={
            "cleanup.policy": topic.cleanup,
            "retention.ms": "-1" if retention_ms is None else str(retention_ms),
            "max.message.bytes": str(record_bytes(topic)),
            "message.timestamp.type": "CreateTime",  # a request's budget is counted from it (workers/rollout)
            **clock_bounds(clock_ms(retention_ms)),
        },
    )


def record_bytes(topic: Topic) -> int:
    """Return the maximum record of ``topic``."""
    return topic.max_message_bytes + HEADER_ROOM


def letter_bytes(topic: Topic) -> int:
    """Return the maximum dead letter of ``topic``."""
    return record_bytes(topic) + HEADER_ROOM


MAX_LETTER_BYTES = max(letter_bytes(topic) for topic in topics.ALL)
"""Maximum record of any producer."""


def clock_ms(retention_ms: int | None) -> int:
    """Return the maximum offset of a topic's timestamps from the broker's clock (ms).

    A record older than its topic's retention would be deleted unread.
    """
    return CLOCK_MS if retention_ms is None else min(CLOCK_MS, retention_ms)


def clock_bounds(bound_ms: int) -> dict[str, str]:
    """Return the broker's configuration keys that bound timestamps in both directions."""
    return {f"message.timestamp.{side}.max.ms": str(bound_ms) for side in ("before", "after")}


def dead_letters_of(topic: Topic, bus: Bus) -> TopicSpec:
    """Return the declared state of the dead-letter topic of ``topic``."""
    return TopicSpec(
        name=bus.prefix + topic.name + DEAD_LETTERS,
        replicas=bus.topics.replicas,
        configs={
            "cleanup.policy": "delete",
            "retention.ms": str(DEAD_LETTER_DAYS * DAY_MS),
            "max.message.bytes": str(letter_bytes(topic)),
            **clock_bounds(CLOCK_MS),
        },
    )


def plan(wanted: Sequence[TopicSpec], actual: Mapping[str, TopicSpec]) -> list[Change]:
    """Return the changes from ``actual`` (by name) to ``wanted``; other topics are left alone."""
    return [change for spec in wanted for change in changes_of(spec, actual.get(spec.name))]


def changes_of(wanted: TopicSpec, actual: TopicSpec | None) -> list[Change]:
    """Return the changes of one topic."""
    if actual is None:
        replicas = {"replicas": str(wanted.replicas)} if wanted.replicas else {}
        after = {"partitions": str(wanted.partitions), **replicas, **wanted.configs}
        return [Change(topic=wanted.name, action="create", before={}, after=after)]
    changes = []
    if wanted.replicas and actual.replicas and wanted.replicas != actual.replicas:
        before, after = {"replicas": str(actual.replicas)}, {"replicas": str(wanted.replicas)}
        changes.append(Change(topic=wanted.name, action="replicas", before=before, after=after))
    if wanted.partitions > actual.partitions or (wanted.partitions < actual.partitions and not wanted.shared):
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


def list_grown(wanted: Sequence[TopicSpec], actual: Mapping[str, TopicSpec]) -> list[str]:
    """Return a sentence for each shared topic with more partitions than declared, which are kept."""
    return [
        f"{spec.name} keeps its {there.partitions} partitions; {spec.partitions} are declared"
        for spec in wanted
        if spec.shared and (there := actual.get(spec.name)) and there.partitions > spec.partitions
    ]


def strimzi_resource(spec: TopicSpec, cluster: str, namespace: str = "") -> dict[str, Any]:
    """Return the ``KafkaTopic`` resource of a topic for the Kafka cluster ``cluster``."""
    name = resource_name(spec.name)
    return {
        "apiVersion": "kafka.strimzi.io/v1",
        "kind": "KafkaTopic",
        "metadata": {"name": name, "labels": {"strimzi.io/cluster": cluster}}
        | ({"namespace": namespace} if namespace else {}),
        "spec": {"partitions": spec.partitions, "config": spec.configs}
        | ({"replicas": spec.replicas} if spec.replicas else {})
        | ({} if name == spec.name else {"topicName": spec.name}),
    }


def resource_name(topic: str) -> str:
    """Return the topic's name if Kubernetes accepts it, else a unique valid one."""
    if len(topic) <= MAX_RESOURCE_NAME and RESOURCE_NAME.fullmatch(topic):
        return topic
    readable = re.sub(r"[^a-z0-9]+", "-", topic.lower()).strip("-")[: MAX_RESOURCE_NAME - DIGEST_DIGITS - 1] or "topic"
    return f"{readable.rstrip('-')}-{hashlib.sha256(topic.encode()).hexdigest()[:DIGEST_DIGITS]}"


def strimzi_yaml(specs: Sequence[TopicSpec], cluster: str, namespace: str = "") -> str:
    """Return the resources of topics as the documents of one YAML file."""
    return "---\n".join(msgspec.yaml.encode(strimzi_resource(spec, cluster, namespace)).decode() for spec in specs)
