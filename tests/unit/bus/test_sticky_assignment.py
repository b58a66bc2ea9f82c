"""The assignment of partitions: balanced, deterministic, and without moves that balance does not need."""

from collections.abc import Mapping
from types import SimpleNamespace

import pytest
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from hypothesis import given
from hypothesis import strategies as st

from dart_streams.bus.sticky_assignment import (
    PartitionClaim,
    StickyAssignor,
    Subscriber,
    assign_partitions,
    read_user_data,
)

TOPIC = "requests"
CLUSTER = SimpleNamespace(partitions_for_topic=lambda topic: set(range(4)))

Owned = dict[str, list[int]]

counts = st.integers(1, 24)
names = st.sampled_from("abcdefgh")
claims = st.builds(
    PartitionClaim,
    st.integers(0, 3),
    st.fixed_dictionaries({TOPIC: st.lists(st.integers(0, 30), unique=True, max_size=24)}),
)


def assign(count: int, members: Mapping[str, PartitionClaim]) -> Owned:
    known = {name: Subscriber([TOPIC], claim) for name, claim in members.items()}
    return {name: owned.get(TOPIC, []) for name, owned in assign_partitions({TOPIC: range(count)}, known).items()}


def claimed(owned: Owned) -> dict[str, PartitionClaim]:
    return {name: PartitionClaim(1, {TOPIC: numbers}) for name, numbers in owned.items()}


def check_balance(count: int, owned: Owned) -> None:
    assert sorted(number for numbers in owned.values() for number in numbers) == list(range(count))
    assert max(map(len, owned.values())) - min(map(len, owned.values())) <= 1


@given(counts, st.dictionaries(names, claims, min_size=1))
def test_each_partition_has_one_member_whatever_is_claimed(count, members):
    owned = assign(count, members)
    check_balance(count, owned)
    assert owned == assign(count, dict(reversed(members.items()))), "any member may lead"


@given(counts, st.lists(names, min_size=1))
def test_only_partitions_of_a_leaver_or_for_a_joiner_move(count, events):
    """Each event is a member that joins, or leaves if it was there."""
    owned = assign(count, {events[0]: PartitionClaim()})
    for name in events[1:]:
        before = owned
        if name not in before:
            owned = assign(count, claimed(before) | {name: PartitionClaim()})
            assert all(set(owned[other]) <= set(numbers) for other, numbers in before.items())
        elif len(before) > 1:
            owned = assign(count, claimed({other: numbers for other, numbers in before.items() if other != name}))
            assert all(set(numbers) <= set(before[other]) | set(before[name]) for other, numbers in owned.items())
            assert all(set(owned[other]) >= set(before[other]) for other in owned)
        check_balance(count, owned)


def test_partitions_move_for_balance_alone_and_go_to_their_readers():
    first = assign(4, dict.fromkeys("abcd", PartitionClaim()))
    assert first == {"a": [0], "b": [1], "c": [2], "d": [3]}
    after = assign(4, claimed({name: first[name] for name in "bcd"}))
    assert after == {"b": [0, 1], "c": [2], "d": [3]}
    assert assign(4, claimed(after) | {"e": PartitionClaim()}) == {"b": [0], "c": [2], "d": [3], "e": [1]}
    assert assign(8, claimed({"a": [0, 1, 2], "b": [3]})) == {"a": [0, 1, 2, 6], "b": [3, 4, 5, 7]}
    members = {"a": Subscriber(["x", "y"], PartitionClaim()), "b": Subscriber(["y"], PartitionClaim())}
    assert assign_partitions({"x": [0, 1], "y": [0, 1], "z": [0]}, members) == {
        "a": {"x": [0, 1], "y": [1]},
        "b": {"y": [0]},
    }


def test_a_claim_of_an_older_assignment_does_not_count():
    """As of a member that was frozen while its partitions were given to others."""
    newer = {name: PartitionClaim(7, {TOPIC: numbers}) for name, numbers in {"b": [0, 1], "c": [2, 3]}.items()}
    assert assign(4, {"d": PartitionClaim(6, {TOPIC: [0, 2]})} | newer) == {"b": [0, 1], "c": [2], "d": [3]}


def assigned_by(leader: type | StickyAssignor, members: Mapping[str, type | StickyAssignor]) -> Owned:
    """Return what a leader assigns, by way of the bytes of the protocol."""
    asked = {
        name: ConsumerProtocolMemberMetadata.decode(each.metadata([TOPIC]).encode()) for name, each in members.items()
    }
    owned = {}
    for name, assignment in leader.assign(CLUSTER, asked).items():
        received = ConsumerProtocolMemberAssignment.decode(assignment.encode())
        members[name].on_assignment(received)
        owned[name] = [partition.partition for partition in received.partitions()]
    return owned


def test_members_of_an_older_version_may_lead_and_follow():
    old, members = RoundRobinPartitionAssignor, {name: StickyAssignor() for name in "bcde"}
    assert old.name == StickyAssignor.name
    assert assigned_by(old, {"a": old, **members}) == {"a": [0], "b": [1], "c": [2], "d": [3], "e": []}
    assert assigned_by(members["b"], {"a": old, **members}) == {"a": [0], "b": [1], "c": [2], "d": [3], "e": []}
    assert assigned_by(members["c"], members) == {"b": [1], "c": [2], "d": [3], "e": [0]}


def test_consumers_of_one_process_share_no_claim():
    members = {name: StickyAssignor() for name in "abcd"}
    assigned_by(members["a"], members)
    assert [member.claim for member in members.values()] == [
        PartitionClaim(1, {TOPIC: [number]}) for number in range(4)
    ]
    assigned_by(members["d"], members)
    assert members["a"].claim == PartitionClaim(2, {TOPIC: [0]})


@pytest.mark.parametrize("data", [None, b"", b"\x00\x01", b'{"\xff": 1}', b"{", b"[]", b'{"epoch": "x"}'])
def test_unknown_user_data_is_no_claim(data):
    assert read_user_data(data, PartitionClaim()) == PartitionClaim()
