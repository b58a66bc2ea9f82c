import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_streams.config import parse
from dart_streams.curation import order_tracker
from dart_streams.curation.reducer import InvalidEvent
from tests.events import trajectory


@given(st.integers(0, 10**9), st.integers(0, 99), st.integers(0, 9))
def test_the_name_of_an_order_says_where_it_belongs(number, sample, attempt):
    assert order_tracker.parse_order_id(
        order_tracker.format_order_id(order_tracker.OrderKey(number, sample, attempt))
    ) == order_tracker.OrderKey(number, sample, attempt)


@pytest.mark.parametrize(
    "other", ["", "g1", "demo-3", "g000001/2", "g-1/0/0", "x000001/0/0", "eval-v0-0001-0", "g1/a/0"]
)
def test_other_orders_have_other_names(other):
    assert order_tracker.parse_order_id(other) is None


@pytest.mark.parametrize("order_id", ["demo-3", "g000041/2/0"])
def test_an_order_that_dispatch_cannot_have_placed_is_refused(order_id):
    with pytest.raises(InvalidEvent, match="in a group of 2 is not one of dispatch's"):
        order_tracker.order_key_of(trajectory(order_id=order_id, group_size=2))


def test_the_backlog_follows_the_slots_and_the_horizon_is_far_beyond_it():
    assert order_tracker.order_backlog(parse({"env": {"workers": 3, "slots": 10}})) == 60
    assert order_tracker.Limits.of(parse({"env": {"workers": 10, "slots": 100}})).horizon >= 4 * 2000


def test_a_sample_ends_once_and_a_closed_group_is_not_opened_again():
    tracker = order_tracker.OrderTracker()
    tracker.open_up_to(0, 2, 256)
    assert tracker.finish(order_tracker.OrderKey(0, 1, 0), "success", 3) == "rewarded"
    for place in ((0, 1), (0, 2), (1, 0)):
        assert tracker.finish(order_tracker.OrderKey(*place, 0), "failure", 3) == "repeated"
    tracker = order_tracker.OrderTracker()
    tracker.open_up_to(5, 1, 256)
    tracker.finish(order_tracker.OrderKey(5, 0, 0), "success", 3)
    tracker.open_up_to(5, 1, 256)
    assert tracker.open == {}


def test_the_attempts_before_the_last_fault_are_over():
    tracker = order_tracker.OrderTracker()
    tracker.open_up_to(0, 1, 256)
    ends = (("env_error", 0), ("success", 0), ("policy_error", 1), ("env_error", 2))
    found = [tracker.finish(order_tracker.OrderKey(0, 0, attempt), end, 3) for end, attempt in ends]
    assert found == ["ordered", "repeated", "ordered", "exhausted"]
    assert 0 not in tracker.open


def test_a_number_that_dispatch_has_not_given_out_abandons_no_open_group():
    tracker = order_tracker.OrderTracker()
    tracker.admit(order_tracker.OrderKey(0, 0, 0), 1, "success", 256)
    with pytest.raises(InvalidEvent, match="dispatch has not given it out"):
        tracker.admit(order_tracker.OrderKey(257, 0, 0), 1, "success", 256)
    assert list(tracker.open) == [0]


@given(st.lists(st.integers(0, 5000), max_size=300), st.integers(1, 64))
def test_the_tracker_abandons_only_groups_behind_the_horizon(numbers, horizon):
    tracker = order_tracker.OrderTracker()
    for number in numbers:
        for old in tracker.open_up_to(number, 1, horizon):
            assert old <= tracker.newest - horizon
        if number % 3:
            tracker.finish(order_tracker.OrderKey(number, 0, 0), "success", 1)
        assert all(tracker.newest - horizon < open_one <= tracker.newest for open_one in tracker.open)
        assert len(tracker.open) <= horizon
