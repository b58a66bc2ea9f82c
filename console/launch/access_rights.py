"""Rights of each kind of process at a broker that enforces ACLs: topics that it reads and writes, and its group.

A kind has a login of its own. Environment workers show web pages, so theirs opens the least.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, get_args

import msgspec
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    KafkaAdminClient,
    ResourcePattern,
    ResourceType,
)
from kafka.errors import KafkaError

from dart_streams.bus.topology import DEAD_LETTERS, has_dead_letters
from dart_streams.config import Bus, Config
from dart_streams.errors import UserError
from topics import (
    Topic,
    action_requests,
    actions,
    curated,
    curation_log,
    feedback,
    observations,
    rollout_budgets,
    rollout_orders,
    task_difficulty,
    task_verdicts,
    tasks,
    trained,
    trajectories,
    weights,
    weights_serving,
)
from workers.curator.changelogs import application_id, changelog_topics

PEOPLE: dict[str, tuple[Topic, ...]] = {
    "feedback": (feedback.TOPIC, actions.TOPIC),
    "demonstrate": (rollout_orders.TOPIC, actions.TOPIC),
}
"""Commands of people, which read all and write these topics: ``feedback`` and ``ui --feedback``, whose people may take
rollouts over; ``demonstrate``."""
KINDS = ("env", "rollout", "recorder", "curator", "trainer", "monitor", "ui", *PEOPLE, "tracker", "run")
"""``run`` is the supervisor and every other command that makes topics or sends orders: ``topics apply``, ``eval``."""
VIEWERS = ("monitor", "ui")
Operation = Literal[
    "Read", "Write", "Describe", "Create", "Delete", "Alter", "AlterConfigs", "DescribeConfigs", "IdempotentWrite"
]
Resource = Literal["topic", "group", "cluster"]
ADMINISTRATION: tuple[Operation, ...] = get_args(Operation)[:-1]
"""All but idempotent writes, which are a right of the cluster."""
CLUSTER = "kafka-cluster"
"""Kafka's name of the cluster as a resource."""
GROUP_ADMINISTRATION: tuple[Operation, ...] = ("Read", "Describe", "Delete")


NamedRight = tuple[str, tuple[Operation, ...]]
"""The full name of a resource, and what is allowed."""


class ProcessUse(msgspec.Struct, frozen=True, kw_only=True):
    """What a kind of process uses; names are without the prefix.

    ``letters`` are topics whose records it may reject, and ``sees`` are groups whose offsets it reads.
    """

    reads: tuple[Topic, ...] = ()
    writes: tuple[Topic, ...] = ()
    letters: tuple[Topic, ...] = ()
    describes: tuple[Topic, ...] = ()
    groups: tuple[str, ...] = ()
    sees: tuple[str, ...] = ()


class AccessRight(msgspec.Struct, frozen=True, kw_only=True):
    """Operations that a principal may do with a resource; a ``prefixed`` name stands for all that begin with it."""

    principal: str
    resource: Resource
    pattern: Literal["literal", "prefixed"]
    name: str
    operations: tuple[Operation, ...]


def use_of(kind: str, config: Config) -> ProcessUse:
    """Return what a kind of worker, or the trainer, uses in a deployment; raise ``KeyError`` for any other."""
    proposed = (tasks.TOPIC,) if config.tasks.proposals else ()
    consumed = (trajectories.TOPIC, task_difficulty.TOPIC, rollout_budgets.TOPIC, curated.TOPIC, weights.TOPIC)
    verdicts = (task_verdicts.TOPIC,) if config.tasks.proposals else ()
    coupled = (weights_serving.TOPIC,) if config.curation.dispatch.mode == "coupled" else ()
    given = (feedback.TOPIC,) if config.feedback.enabled else ()
    inputs = (*consumed, *coupled, *proposed, *verdicts, *given)
    return {
        "env": ProcessUse(
            reads=(rollout_orders.TOPIC, actions.TOPIC, *proposed, *given),
            writes=(observations.TOPIC, action_requests.TOPIC),
            letters=(rollout_orders.TOPIC, actions.TOPIC),
            groups=("env",),
        ),
        "rollout": ProcessUse(
            reads=(action_requests.TOPIC, weights.TOPIC, weights_serving.TOPIC),
            writes=(actions.TOPIC, weights_serving.TOPIC),
            letters=(action_requests.TOPIC,),
            groups=("rollout",),
        ),
        "recorder": ProcessUse(
            reads=(observations.TOPIC,),
            writes=(trajectories.TOPIC,),
            letters=(observations.TOPIC,),
            groups=("recorder",),
        ),
        "curator": ProcessUse(
            reads=(*inputs, curation_log.TOPIC),
            writes=(
                *(task_difficulty.TOPIC, rollout_budgets.TOPIC, curated.TOPIC, rollout_orders.TOPIC),
                *(curation_log.TOPIC, trajectories.TOPIC, *verdicts),  # the audit ends lost orders as trajectories
            ),
            letters=inputs,
            describes=(observations.TOPIC,),
            groups=("curator",),
            sees=("env", "recorder"),
        ),
        "trainer": ProcessUse(
            reads=(curated.TOPIC, weights.TOPIC, weights_serving.TOPIC, trained.TOPIC),
            writes=(weights.TOPIC, trained.TOPIC),
            letters=(curated.TOPIC,),
            groups=("trainer",),
        ),
        "tracker": ProcessUse(reads=(trained.TOPIC,), groups=(f"tracker-{config.tracker.tool}",)),
    }[kind]


def rights_of(kind: str, config: Config, user: str) -> list[AccessRight]:
    """Return the rights of a kind of process, for the login ``user``; raise :class:`UserError` for an unknown kind."""
    if kind not in KINDS:
        raise UserError(f"no kind of process {kind!r}: use one of {', '.join(KINDS)}")
    if kind == "run":
        return [right for bus in (config.bus, config.bus.of_demonstrations) for right in owner_rights(bus, user)]
    if kind == "tracker" and not config.tracker.tool:
        return []
    if kind in VIEWERS:
        return [*viewer_rights(config.bus, user), *([open_producer(user)] if kind == "monitor" else [])]
    if kind in PEOPLE:
        written: list[NamedRight] = [(config.bus.prefix + topic.name, ("Write",)) for topic in PEOPLE[kind]]
        return [*viewer_rights(config.bus, user), *literal_rights(user, "topic", written)]
    use, prefix = use_of(kind, config), config.bus.prefix
    topics: list[NamedRight] = [*topic_rights(use, prefix)]
    if kind == "curator":
        topics += [(spec.name, ("Read", "Write", "Describe")) for spec in changelog_topics(config)]
        assert use.groups == (application_id(config).removeprefix(prefix),)
    groups: list[NamedRight] = [(prefix + name, ("Read", "Describe")) for name in use.groups]
    groups += [(prefix + name, ("Describe",)) for name in use.sees]
    return [
        *literal_rights(user, "topic", topics),
        *literal_rights(user, "group", groups),
        *([open_producer(user)] if not use.writes else []),
    ]


def literal_rights(user: str, resource: Resource, named: Iterable[NamedRight]) -> Iterator[AccessRight]:
    """Yield rights to resources of a kind by their full names."""
    for name, operations in named:
        yield AccessRight(
            principal=f"User:{user}", resource=resource, pattern="literal", name=name, operations=operations
        )


def open_producer(user: str) -> AccessRight:
    """Return the right to open an idempotent producer, for a process that asks with one and may write no topic."""
    [right] = literal_rights(user, "cluster", [(CLUSTER, ("IdempotentWrite",))])
    return right


def topic_rights(use: ProcessUse, prefix: str) -> Iterator[NamedRight]:
    """Yield the full name of each topic with what is allowed."""
    for topic in dict.fromkeys((*use.reads, *use.writes, *use.describes)):
        read: tuple[Operation, ...] = ("Read",) if topic in use.reads else ()
        write: tuple[Operation, ...] = ("Write",) if topic in use.writes else ()
        yield prefix + topic.name, (*read, *write, "Describe")
    for topic in use.letters:
        if has_dead_letters(topic):
            yield prefix + topic.name + DEAD_LETTERS, ("Write", "Describe")


def owner_rights(bus: Bus, user: str) -> list[AccessRight]:
    """Return the rights to make, change and remove everything under a prefix."""
    return [under_prefix(user, bus, "topic", ADMINISTRATION), under_prefix(user, bus, "group", GROUP_ADMINISTRATION)]


def viewer_rights(bus: Bus, user: str) -> list[AccessRight]:
    """Return the rights to read every topic under a prefix, and to describe the groups there."""
    return [under_prefix(user, bus, "topic", ("Read", "Describe")), under_prefix(user, bus, "group", ("Describe",))]


def under_prefix(
    user: str, bus: Bus, resource: Literal["topic", "group"], operations: tuple[Operation, ...]
) -> AccessRight:
    """Return a right to all resources of a kind under the prefix of a bus."""
    return AccessRight(
        principal=f"User:{user}", resource=resource, pattern="prefixed", name=bus.prefix, operations=operations
    )


def grant(admin: KafkaAdminClient, rights: Sequence[AccessRight]) -> None:
    """Give rights at the broker; those that are there stay. Raise :class:`UserError` if it refuses or has no ACLs."""
    acls = [acl for right in rights for acl in acls_of(right)]
    try:
        failed = admin.create_acls(acls)["failed"]
    except KafkaError as error:
        raise UserError(
            f"the broker gave no right ({error}): has it an authorizer, and may this login alter ACLs?"
        ) from None
    if failed:
        raise UserError(f"the broker refused {len(failed)} of {len(acls)} rights, the first one: {failed[0]}")


def acls_of(right: AccessRight) -> list[ACL]:
    """Return a right as ACLs of kafka-python, one an operation, from any host."""
    resource = ResourcePattern(
        ResourceType[right.resource.upper()], right.name, ACLResourcePatternType[right.pattern.upper()]
    )
    return [
        ACL(
            right.principal,
            "*",
            ACLOperation[re.sub("(?<!^)(?=[A-Z])", "_", name).upper()],
            ACLPermissionType.ALLOW,
            resource,
        )
        for name in right.operations
    ]
