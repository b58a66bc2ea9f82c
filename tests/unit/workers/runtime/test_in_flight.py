"""Records in flight: handled once, committed when finished, redelivered when not."""

import pytest

from workers.runtime import in_flight
from workers.runtime.in_flight import DeliveryStatus, InFlightRecords, TrackedOffset


def owning(*partitions: int) -> InFlightRecords[int]:
    state: InFlightRecords[int] = InFlightRecords()
    state.assign(partitions)
    return state


def test_a_record_is_committed_with_all_before_it_as_a_dead_letter_is():
    state = owning(0)
    assert {state.deliver(name, TrackedOffset(0, offset)) for offset, name in enumerate("abc")} == {DeliveryStatus.NEW}
    state.finish("b")
    assert state.offsets.commits() == {0: 0}
    state.finish("a")
    assert state.offsets.commits() == {0: 2}
    state = owning(0)
    state.skip(TrackedOffset(0, 0))
    assert state.offsets.commits() == {0: 1}


@pytest.mark.parametrize("status", [DeliveryStatus.IN_FLIGHT, DeliveryStatus.FINISHED])
def test_a_record_is_not_handled_again_after_a_rebalance(status: DeliveryStatus):
    state = owning(0)
    state.deliver("a", TrackedOffset(0, 5))
    state.revoke([0])
    if status is DeliveryStatus.FINISHED:
        state.finish("a")
    state.assign([0])
    assert state.deliver("a", TrackedOffset(0, 5)) is status
    state.finish("a")
    assert state.offsets.commits() == {0: 6}


def test_a_record_published_twice_is_handled_once():
    state = owning(0, 1)
    assert state.deliver("a", TrackedOffset(0, 5)) is DeliveryStatus.NEW
    assert state.deliver("a", TrackedOffset(1, 9)) is DeliveryStatus.IN_FLIGHT
    state.finish("a")
    assert state.offsets.commits() == {0: 6, 1: 10}


def test_a_record_of_a_revoked_partition_is_not_handled():
    state = owning(0, 1)
    state.revoke([1])
    assert state.deliver("a", TrackedOffset(1, 0)) is DeliveryStatus.REVOKED
    assert state.in_flight == {}
    assert state.deliver("b", TrackedOffset(0, 0)) is DeliveryStatus.NEW


def test_a_limited_number_of_finished_records_is_remembered(monkeypatch):
    monkeypatch.setattr(in_flight, "FINISHED_IDS", 2)
    state = owning(0)
    for offset, name in enumerate("abc"):
        state.deliver(name, TrackedOffset(0, offset))
        state.finish(name)
    assert state.deliver("c", TrackedOffset(0, 3)) is DeliveryStatus.FINISHED
    assert state.deliver("a", TrackedOffset(0, 4)) is DeliveryStatus.NEW
