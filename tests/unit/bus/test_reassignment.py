"""Moves of topics between brokers: enough copies, on different brokers, evenly, and no more moves than needed."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_streams.bus.reassignment import PlacedPartition, list_lacking, plan_moves
from dart_streams.errors import UserError

brokers = st.lists(st.integers(1, 9), min_size=1, max_size=5, unique=True)


@st.composite
def deployments(draw) -> tuple[list[PlacedPartition], list[int], int]:
    old, new = draw(brokers), draw(brokers)
    present = [
        PlacedPartition(f"t{topic}", partition, tuple(draw(st.permutations(old))[: draw(st.integers(1, len(old)))]))
        for topic in range(draw(st.integers(0, 4)))
        for partition in range(draw(st.integers(1, 4)))
    ]
    return present, new, draw(st.integers(1, len(new)))


@given(deployments())
def test_every_partition_gets_its_copies_on_brokers_that_are_there(deployment):
    present, alive, copies = deployment
    moves = plan_moves(present, alive, copies)
    after = {(each.topic, each.partition): each for each in (*present, *moves)}
    for placement in after.values():
        assert len(set(placement.brokers)) == len(placement.brokers) == copies
        assert set(placement.brokers) <= set(alive)
    assert plan_moves(after.values(), alive, copies) == []


@given(deployments())
def test_copies_on_remaining_brokers_stay_first(deployment):
    present, alive, copies = deployment
    before = {(each.topic, each.partition): each for each in present}
    for move in plan_moves(present, alive, copies):
        kept = [broker for broker in before[move.topic, move.partition].brokers if broker in alive][:copies]
        assert list(move.brokers[: len(kept)]) == kept


def test_new_copies_are_spread_and_more_than_brokers_are_refused():
    present = [PlacedPartition("t", partition, (1,)) for partition in range(6)]
    moves = plan_moves(present, [1, 2, 3], 2)
    assert Counter(broker for move in moves for broker in move.brokers) == {1: 6, 2: 3, 3: 3}
    with pytest.raises(UserError, match="replicas is 3, and there are 2 brokers"):
        plan_moves([], [1, 2], 3)


def test_a_move_is_done_when_each_wanted_broker_is_in_sync():
    moves = [PlacedPartition("t", 0, (1, 2)), PlacedPartition("t", 1, (1, 2))]
    assert list_lacking(moves, {("t", 0): [2, 1, 3], ("t", 1): [1]}) == ["t[1]"]
