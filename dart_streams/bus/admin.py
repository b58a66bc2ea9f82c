"""Topics as code, the shell: read a broker's topics and apply changes through kafka-python's admin client."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from kafka import TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, OffsetSpec
from kafka.errors import (
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    NodeNotReadyError,
    TopicAlreadyExistsError,
    for_code,
)

from dart_streams.bus import sync_clients
from dart_streams.bus.reassignment import OFFSETS_TOPIC, PlacedPartition, list_lacking, plan_moves
from dart_streams.bus.topology import Change, TopicSpec, declare_topics, plan
from dart_streams.config import Bus
from dart_streams.deadline import Deadline
from dart_streams.errors import ServiceUnavailable, UserError

REQUEST_TIMEOUT_S = 30.0
VISIBLE_S = 120.0
"""Time limit for created or changed topics to be visible; a broker with a busy disk took longer than 30 s."""
POLL_INTERVAL_S = 0.5
BROKERS_REPLICAS = -1
"""The broker's ``default.replication.factor``, in a request that creates a topic."""
IMPOSSIBLE = ("shrink", "replicas")
"""Changes that Kafka can't make."""


class TopicsRefused(UserError):
    """Topics that can't be changed as declared; the text names them and the remedy."""


class TopicState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a topic; ``end_offsets`` and ``records`` have one entry a partition."""

    topic: str
    partitions: int
    replicas: int
    configs: dict[str, str]
    end_offsets: list[int]
    records: list[int]


def apply_all(bus: Bus, extra: Sequence[TopicSpec] = (), *, keep_grown: bool = False) -> list[Change]:
    """Create and alter the broker's topics as declared; return the changes.

    ``keep_grown`` leaves alone topics with more partitions than declared, or with other replicas; a resumed run checks
    those itself.

    Raises :class:`ServiceUnavailable` if no broker answers within ``bus.wait_s``, and what :func:`apply` raises.
    """
    with connect(bus) as admin:
        changes = plan_against(admin, declare_topics(bus, extra))
        if keep_grown:
            changes = [change for change in changes if change.action not in IMPOSSIBLE]
        apply(admin, changes)
    return changes


def plan_against(admin: KafkaAdminClient, wanted: Sequence[TopicSpec]) -> list[Change]:
    """Return the changes from the broker's topics to ``wanted``."""
    return plan(wanted, read_topics(admin, wanted))


@contextlib.contextmanager
def connect(bus: Bus) -> Iterator[KafkaAdminClient]:
    """Yield an admin client; raise as :func:`~dart_streams.bus.sync_clients.connect` does, and if an answer is late."""
    client = sync_clients.connect(KafkaAdminClient, bus, request_timeout_ms=int(REQUEST_TIMEOUT_S * 1000))
    with contextlib.closing(client) as admin:
        try:
            yield admin
        except (KafkaTimeoutError, KafkaConnectionError, NodeNotReadyError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise ServiceUnavailable(f"no answer from {bus.servers} ({reason}): see `dart-streams doctor`") from error


def read_topics(admin: KafkaAdminClient, wanted: Sequence[TopicSpec]) -> dict[str, TopicSpec]:
    """Return the existing topics of ``wanted`` by name, with the configuration keys that are declared.

    Raises :class:`TopicsRefused` if the broker keeps their configurations from this user.
    """
    described = {topic["name"]: topic for topic in admin.describe_topics([spec.name for spec in wanted])}
    existing = [spec for spec in wanted if described[spec.name]["error_code"] == 0]
    asked = [ConfigResource(ConfigResourceType.TOPIC, spec.name, {**spec.configs}) for spec in existing if spec.configs]
    configs = admin.describe_configs(asked, config_filter="all")["topic"] if asked else {}
    # The client drops a topic's error: nothing is the answer if it was deleted meanwhile, and without the right to ask.
    lacking = {resource.name for resource in asked if not configs[resource.name]}
    if lacking and (kept := sorted(topic_ids(admin, sorted(lacking)))):
        raise TopicsRefused(f"the broker gives no configurations of {', '.join(kept)}: grant DescribeConfigs")
    return {
        spec.name: TopicSpec(
            name=spec.name,
            partitions=len(described[spec.name]["partitions"]),
            replicas=len(described[spec.name]["partitions"][0]["replica_nodes"]),
            configs={key: entry["value"] for key, entry in configs.get(spec.name, {}).items()},
        )
        for spec in existing
        if spec.name not in lacking
    }


def topic_ids(admin: KafkaAdminClient, names: Sequence[str]) -> dict[str, str]:
    """Return the broker's ids of the existing topics, by name."""
    return {each["name"]: str(each["topic_id"]) for each in admin.describe_topics([*names]) if not each["error_code"]}


def apply(admin: KafkaAdminClient, changes: Sequence[Change]) -> None:
    """Apply changes and return once all are visible.

    Raises :class:`TopicsRefused`, with nothing changed, if a change is impossible, or if the broker refuses one.
    """
    refuse_impossible(changes)
    try:
        create(admin, [change for change in changes if change.action == "create"])
        grown = {c.topic: int(c.after["partitions"]) for c in changes if c.action == "add partitions"}
        if grown:
            admin.create_partitions(grown)
        alter(admin, [change for change in changes if change.action == "alter"])
        await_visible(admin, changes)
    except KafkaError as error:
        raise TopicsRefused(f"the broker refused a change: {error}") from error


def refuse_impossible(changes: Sequence[Change]) -> None:
    """Raise :class:`TopicsRefused` for topics with more partitions than declared, or with other replicas."""
    if which := list_differences(changes, "shrink", "partitions"):
        raise TopicsRefused(
            f"Kafka can't take partitions away ({which}). Declare as many as it has, use another bus.prefix, "
            "or delete the topic and its records"
        )
    if which := list_differences(changes, "replicas", "replicas"):
        raise TopicsRefused(
            f"topics have other replicas than bus.topics.replicas declares ({which}). Move them with "
            "`dart-streams topics move`, or declare what they have"
        )


def list_differences(changes: Sequence[Change], action: str, key: str) -> str:
    """Return what topics have and what is declared, for the changes of one action; empty without any."""
    chosen = [change for change in changes if change.action == action]
    return "; ".join(f"{change.topic} has {change.before[key]}, declared {change.after[key]}" for change in chosen)


def create(admin: KafkaAdminClient, changes: Sequence[Change]) -> None:
    """Create topics and return once each partition has a leader; existing topics are skipped."""
    if not changes:
        return
    wanted = {
        change.topic: {
            "num_partitions": int(change.after["partitions"]),
            "replication_factor": int(change.after.get("replicas", BROKERS_REPLICAS)),
            "configs": configs_of(change),
        }
        for change in changes
    }
    for answer in admin.create_topics(wanted, raise_errors=False)["topics"]:
        error = for_code(answer["error_code"])
        if answer["error_code"] and error is not TopicAlreadyExistsError:
            raise TopicsRefused(f"topic {answer['name']} was not created: {answer['error_message'] or error.__name__}")
    try:
        admin.wait_for_topics(list(wanted), timeout_ms=int(VISIBLE_S * 1000))
    except KafkaTimeoutError as error:
        raise ServiceUnavailable(f"the broker accepted topics that are not ready: {error}") from None


def configs_of(change: Change) -> dict[str, str]:
    """Return the broker's configuration keys of a change."""
    return {key: value for key, value in change.after.items() if key not in ("partitions", "replicas")}


def alter(admin: KafkaAdminClient, changes: Sequence[Change]) -> None:
    """Set configurations of existing topics."""
    if not changes:
        return
    resources = [ConfigResource(ConfigResourceType.TOPIC, change.topic, dict(change.after)) for change in changes]
    # The client returns the broker's error as a text. Its own check of keys takes a deleted topic for an unknown key.
    for topic, answer in admin.alter_configs(resources, raise_on_unknown=False)["topic"].items():
        if answer != "OK":
            raise TopicsRefused(f"topic {topic} was not altered: {answer}")


def await_visible(admin: KafkaAdminClient, changes: Sequence[Change]) -> None:
    """Return once the brokers' metadata shows every change; it lags behind the answers to requests."""
    wanted = [TopicSpec(name=change.topic, configs=configs_of(change)) for change in changes]
    deadline = Deadline(VISIBLE_S)
    while True:
        present = read_topics(admin, wanted).values()
        visible = {
            spec.name: spec.configs | {"partitions": str(spec.partitions), "replicas": str(spec.replicas)}
            for spec in present
        }
        late = [c.topic for c in changes if not c.after.items() <= visible.get(c.topic, {}).items()]
        if not late:
            return
        if deadline.expired:
            raise ServiceUnavailable(f"the broker accepted changes that are not visible after {VISIBLE_S:g} s: {late}")
        time.sleep(0.05)


def plan_placements(admin: KafkaAdminClient, names: Sequence[str], copies: int) -> list[PlacedPartition]:
    """Return the moves that give the existing topics of these names, and Kafka's offsets, ``copies`` copies.

    Raises ``UserError`` for more copies than brokers.
    """
    brokers = sorted(broker["broker_id"] for broker in admin.describe_cluster()["brokers"])
    present = [
        PlacedPartition(topic["name"], partition["partition_index"], tuple(partition["replica_nodes"]))
        for topic in describe_existing(admin, names)
        for partition in topic["partitions"]
    ]
    return plan_moves(present, brokers, copies)


def move(admin: KafkaAdminClient, moves: Sequence[PlacedPartition], timeout_s: float) -> None:
    """Start moves and return once each wanted broker has a complete copy.

    Raises :class:`TopicsRefused` if the broker refuses one, and :class:`ServiceUnavailable` after ``timeout_s``, when
    the copying goes on.
    """
    if not moves:
        return
    wanted = {TopicPartition(each.topic, each.partition): list(each.brokers) for each in moves}
    for partition, error in admin.alter_partition_reassignments(wanted).items():
        if error is not None:
            raise TopicsRefused(f"{partition.topic}[{partition.partition}] was not moved: {error.__name__}")
    deadline = Deadline(timeout_s)
    while left := list_lacking(moves, in_sync_brokers(admin, sorted({each.topic for each in moves}))):
        if deadline.expired:
            raise ServiceUnavailable(
                f"{len(left)} partitions are still being copied after {timeout_s:g} s, {left[0]} first: "
                "the brokers go on; call `dart-streams topics move` again to wait"
            )
        time.sleep(POLL_INTERVAL_S)


def describe_existing(admin: KafkaAdminClient, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the broker's description of the existing topics of these names, and of Kafka's offsets."""
    return [topic for topic in admin.describe_topics([*names, OFFSETS_TOPIC]) if not topic["error_code"]]


def in_sync_brokers(admin: KafkaAdminClient, names: Sequence[str]) -> dict[tuple[str, int], list[int]]:
    """Return the brokers with a complete copy of each partition."""
    return {
        (topic["name"], partition["partition_index"]): partition["isr_nodes"]
        for topic in describe_existing(admin, names)
        for partition in topic["partitions"]
    }


def describe(admin: KafkaAdminClient, wanted: Sequence[TopicSpec]) -> list[TopicState]:
    """Return the state of the existing topics of ``wanted``."""
    specs = read_topics(admin, wanted).values()
    partitions = {spec.name: [TopicPartition(spec.name, number) for number in range(spec.partitions)] for spec in specs}
    every = [partition for ours in partitions.values() for partition in ours]
    if not every:
        return []
    ends = admin.list_partition_offsets(dict.fromkeys(every, OffsetSpec.LATEST))
    starts = admin.list_partition_offsets(dict.fromkeys(every, OffsetSpec.EARLIEST))
    return [
        TopicState(
            topic=spec.name,
            partitions=spec.partitions,
            replicas=spec.replicas,
            configs=spec.configs,
            end_offsets=[ends[partition].offset for partition in partitions[spec.name]],
            records=[ends[partition].offset - starts[partition].offset for partition in partitions[spec.name]],
        )
        for spec in specs
    ]
