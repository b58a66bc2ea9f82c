"""Liveness by arrival: what clocks say changes nothing, and a silence of all is nobody's death."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_streams.heartbeats import Heartbeats
from tests.unit.clockwork import SetClock

BOUND_S = 10.0


def heartbeats_of(*beats: tuple[float, str, int]) -> Heartbeats:
    """Hear beats: at which second, of whom, with which time."""
    clock = SetClock()
    heartbeats = Heartbeats(clock)
    for at_s, sender, alive_ms in beats:
        clock.now_s = at_s
        heartbeats.note(sender, alive_ms)
    return heartbeats


def test_a_worker_without_a_heartbeat_is_not_alive():
    heartbeats = heartbeats_of((0, "a", 1))
    assert heartbeats.silent_s("b") == math.inf
    assert heartbeats.alive(BOUND_S) == {"a"}


@pytest.mark.parametrize(
    ("later", "alive"),
    [
        pytest.param([(10, "b", 2)], {"a", "b"}, id="silent for the bound"),
        pytest.param([(10.1, "b", 2)], {"b"}, id="silent for longer"),
        pytest.param([(60, "b", 2), (61, "a", 3)], {"a", "b"}, id="alive again"),
        pytest.param([(60, "b", 2), (60, "a", 1)], {"b"}, id="an old heartbeat again"),
    ],
)
def test_a_worker_is_dead_while_it_is_silent_and_others_beat(later, alive):
    assert heartbeats_of((0, "a", 1), (0, "b", 1), *later).alive(BOUND_S) == alive


def test_without_any_heartbeat_no_worker_dies():
    """The broker was away for ten minutes, or this process stood still."""
    clock = SetClock()
    heartbeats = Heartbeats(clock)
    for sender in "ab":
        heartbeats.note(sender, 1)
    clock.now_s += 600
    assert heartbeats.alive(BOUND_S) == {"a", "b"}


@given(
    st.lists(st.tuples(st.floats(0, 5), st.sampled_from("abc")), max_size=30),
    st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(-600_000, 600_000), min_size=1, max_size=5)),
)
def test_clocks_that_are_wrong_or_jump_change_nothing(beats, errors_ms):
    """Each beat carries its sender's time: right, or off by ten minutes, by another amount from beat to beat."""
    right, wrong, at_s = [], [], 0.0
    for number, (gap_s, sender) in enumerate(beats):
        at_s += gap_s
        of_sender = errors_ms.get(sender, [0])
        right.append((at_s, sender, number * 10_000_000))
        wrong.append((at_s, sender, number * 10_000_000 + of_sender[number % len(of_sender)]))
    expected, found = heartbeats_of(*right), heartbeats_of(*wrong)
    assert found.alive(BOUND_S) == expected.alive(BOUND_S)
    for sender in "abc":
        assert found.silent_s(sender) == expected.silent_s(sender)
