"""A wait longer than its bound is logged, then less and less often, with the source of the last arrival."""

import pytest
import structlog

from dart_streams.telemetry.stall_detector import StallDetector
from tests.unit.clockwork import SetClock


@pytest.fixture
def said():
    """What is logged."""
    with structlog.testing.capture_logs() as lines:
        yield lines


def test_a_silence_is_reported_once_it_passes_the_bound(said):
    clock = SetClock()
    waiting = StallDetector(structlog.get_logger(), "records of actions", 30, clock)
    clock.now_s += 29
    assert waiting.check() is False
    assert said == []
    clock.now_s += 2
    assert waiting.check() is True
    facts = {"waits_for": "records of actions", "silent_s": 31.0, "last_from": "none yet"}
    assert said == [{"event": "waiting", "log_level": "warning", **facts}]


def test_a_long_silence_is_reported_each_time_it_has_doubled(said):
    clock = SetClock()
    waiting = StallDetector(structlog.get_logger(), "anything", 10, clock)
    for _ in range(100):
        clock.now_s += 1
        waiting.check()
    assert [line["silent_s"] for line in said] == [10, 20, 40, 80]


def test_an_arrival_ends_the_silence_and_is_remembered(said):
    clock = SetClock()
    waiting = StallDetector(structlog.get_logger(), "anything", 10, clock)
    clock.now_s += 9
    waiting.note_arrival("rollout-0")
    clock.now_s += 9
    assert waiting.check() is False
    clock.now_s += 2
    waiting.check()
    assert (said[0]["silent_s"], said[0]["last_from"]) == (11, "rollout-0")
