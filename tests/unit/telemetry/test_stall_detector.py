"""A wait longer than its bound is logged, then less and less often, with the source of the last arrival."""

from dart_streams.telemetry.stall_detector import StallDetector


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Log:
    def __init__(self):
        self.said = []

    def warning(self, event, **fields):
        self.said.append((event, fields))


def test_a_silence_is_reported_once_it_passes_the_bound():
    clock, log = Clock(), Log()
    waiting = StallDetector(log, "records of actions", 30, clock)
    clock.now += 29
    assert waiting.check() is False
    assert log.said == []
    clock.now += 2
    assert waiting.check() is True
    assert log.said == [("waiting", {"waits_for": "records of actions", "silent_s": 31.0, "last_from": "none yet"})]


def test_a_long_silence_is_reported_each_time_it_has_doubled():
    clock, log = Clock(), Log()
    waiting = StallDetector(log, "anything", 10, clock)
    for _ in range(100):
        clock.now += 1
        waiting.check()
    assert [fields["silent_s"] for _, fields in log.said] == [10, 20, 40, 80]


def test_an_arrival_ends_the_silence_and_is_remembered():
    clock, log = Clock(), Log()
    waiting = StallDetector(log, "anything", 10, clock)
    clock.now += 9
    waiting.note_arrival("rollout-0")
    clock.now += 9
    assert waiting.check() is False
    clock.now += 2
    waiting.check()
    assert log.said[0][1] == {"waits_for": "anything", "silent_s": 11, "last_from": "rollout-0"}
