"""Orders on one host: started once, committed when ended, given back when not."""

from dart_streams.bus.offsets import TrackedOffset
from workers.env import running_orders as orders
from workers.env.running_orders import Offer, RunningOrders


def owning(*partitions: int) -> RunningOrders[int]:
    state: RunningOrders[int] = RunningOrders()
    state.assign(partitions)
    return state


def test_an_order_is_committed_when_its_episode_has_ended_and_all_before_it_have():
    state = owning(0)
    assert [state.offer(name, TrackedOffset(0, offset)) for offset, name in enumerate("abc")] == [Offer.START] * 3
    state.end("b")
    assert state.offsets.commits() == {0: 0}
    state.end("a")
    assert state.offsets.commits() == {0: 2}


def test_an_order_that_runs_is_not_started_again_after_a_rebalance_and_its_end_commits_the_new_place():
    state = owning(0)
    state.offer("a", TrackedOffset(0, 5))
    state.revoke([0])
    state.assign([0])
    assert state.offer("a", TrackedOffset(0, 5)) is Offer.RUNNING
    assert state.offsets.commits() == {0: 5}
    state.end("a")
    assert state.offsets.commits() == {0: 6}


def test_an_order_that_ended_while_its_partition_was_away_is_not_played_again():
    state = owning(0)
    state.offer("a", TrackedOffset(0, 5))
    state.revoke([0])
    state.end("a")
    state.assign([0])
    assert state.offer("a", TrackedOffset(0, 5)) is Offer.ENDED
    assert state.offsets.commits() == {0: 6}


def test_an_order_published_twice_is_played_once_and_both_places_are_done_with_it():
    state = owning(0, 1)
    assert state.offer("a", TrackedOffset(0, 5)) is Offer.START
    assert state.offer("a", TrackedOffset(1, 9)) is Offer.RUNNING
    state.end("a")
    assert state.offsets.commits() == {0: 6, 1: 10}


def test_an_order_of_a_partition_that_has_moved_away_is_not_played():
    state = owning(0)
    assert state.offer("a", TrackedOffset(1, 0)) is Offer.LOST
    assert state.running == {}


def test_an_order_given_back_is_never_committed():
    state = owning(0)
    state.offer("a", TrackedOffset(0, 0))
    state.offer("b", TrackedOffset(0, 1))
    state.give_back("a")
    state.end("b")
    assert state.offsets.commits() == {0: 0}


def test_a_dead_letter_does_not_hold_the_others():
    state = owning(0)
    state.put_aside(TrackedOffset(0, 0))
    assert state.offsets.commits() == {0: 1}


def test_only_so_many_ended_orders_are_remembered(monkeypatch):
    monkeypatch.setattr(orders, "REMEMBERED", 2)
    state = owning(0)
    for offset, name in enumerate("abc"):
        state.offer(name, TrackedOffset(0, offset))
        state.end(name)
    assert state.offer("c", TrackedOffset(0, 3)) is Offer.ENDED
    assert state.offer("a", TrackedOffset(0, 4)) is Offer.START
