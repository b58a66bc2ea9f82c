"""Sticky assignment of partitions to the members of a group: balanced within one, and no more moves than that needs.

A member reports the partitions that it had, so any member can lead without memory. aiokafka's own sticky assignor
shares this report among all consumers of a process (its issue 1175).
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, TypeVar

import msgspec
from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

from dart_streams.config.text import MALFORMED

PROTOCOL = "roundrobin"
"""The protocol name of aiokafka's default assignor, so that members of older versions may be in the same group.

The leader's version decides. Two protocols would need two names, and with two names aiokafka 0.14 joins twice at each
rebalance, so four members may rebalance forever (its pull request 1168).
"""
VERSION = 0

Data = TypeVar("Data")


class PartitionClaim(msgspec.Struct, frozen=True):
    """The partitions that a member had by assignment number ``epoch``, by topic."""

    epoch: int = 0
    owned: dict[str, list[int]] = {}


class Subscriber(NamedTuple):
    """A member's subscription and claim."""

    topics: Collection[str]
    claim: PartitionClaim


class StickyAssignor:
    """The assignor of one consumer, with the interface of aiokafka's assignors."""

    name = PROTOCOL

    def __init__(self) -> None:
        self.claim = PartitionClaim()

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """Return this member's subscription with its claim."""
        return ConsumerProtocolMemberMetadata(VERSION, list(topics), msgspec.json.encode(self.claim))

    def assign(
        self, cluster: ClusterMetadata, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        """Return the assignment of each member; called at the leader."""
        known = {
            name: Subscriber(member.subscription, read_user_data(member.user_data, PartitionClaim()))
            for name, member in members.items()
        }
        topics = {topic for member in known.values() for topic in member.topics}
        partitions = {topic: cluster.partitions_for_topic(topic) or () for topic in topics}
        epoch = msgspec.json.encode(1 + max(member.claim.epoch for member in known.values()))
        return {
            name: ConsumerProtocolMemberAssignment(VERSION, sorted(owned.items()), epoch)
            for name, owned in assign_partitions(partitions, known).items()
        }

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Remember this member's assignment; a leader of an older version gives it no number."""
        epoch = read_user_data(assignment.user_data, 0)
        self.claim = PartitionClaim(epoch, {topic: list(numbers) for topic, numbers in assignment.assignment})


def read_user_data(data: bytes | None, default: Data) -> Data:
    """Return decoded user data; ``default`` for bytes of another assignor, such as that of an older version."""
    try:
        return msgspec.json.decode(data or b"", type=type(default))
    except MALFORMED:
        return default


def assign_partitions(
    partitions: Mapping[str, Collection[int]], members: Mapping[str, Subscriber]
) -> dict[str, dict[str, list[int]]]:
    """Return each member's partitions by topic; those of a topic without a member that reads it are left out."""
    assigned: dict[str, dict[str, list[int]]] = {name: {} for name in members}
    for topic, numbers in sorted(partitions.items()):
        claims = {name: member.claim for name, member in members.items() if topic in member.topics}
        loads = {name: sum(map(len, assigned[name].values())) for name in claims}
        for name, owned in share_topic(topic, numbers, claims, loads).items():
            if owned:
                assigned[name][topic] = sorted(owned)
    return assigned


def share_topic(
    topic: str, numbers: Collection[int], claims: Mapping[str, PartitionClaim], loads: Mapping[str, int]
) -> dict[str, list[int]]:
    """Return the partitions of a topic by member: most of those claimed, the others to the members with the fewest.

    Among members with equally many, those with the lowest ``loads``, their partitions of other topics, come first.
    """
    if not claims:
        return {}
    owners: dict[int, str] = {}
    for name in sorted(claims, key=lambda name: (claims[name].epoch, name)):
        owners |= dict.fromkeys(claims[name].owned.get(topic, ()), name)
    held: dict[str, list[int]] = {name: [] for name in sorted(claims)}
    for number in sorted(owners.keys() & set(numbers)):
        held[owners[number]].append(number)
    least, extra = divmod(len(numbers), len(held))
    for rank, name in enumerate(sorted(held, key=lambda name: len(held[name]), reverse=True)):
        del held[name][least + (rank < extra) :]
    for number in sorted(set(numbers).difference(*held.values())):
        held[min(held, key=lambda name: (len(held[name]), loads[name]))].append(number)
    return held
