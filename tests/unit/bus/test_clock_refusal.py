from hypothesis import given
from hypothesis import strategies as st

from dart_streams.bus.clock_refusal import AcceptedTimes, clock_refused, format_duration, is_accepted_now
from dart_streams.bus.topology import CLOCK_MS, DEAD_LETTERS, clock_bounds, clock_ms, declare_topics
from dart_streams.config import Bus
from topics import ALL, actions
from topics.topic import HOUR_MS

NOW_MS = 1_795_674_148_420
SAID = "Timestamp {} of message with offset 0 is out of range. The timestamp should be within [{}, {}]"


def said(off_ms: int, before_ms: int = HOUR_MS, after_ms: int = HOUR_MS) -> str:
    return SAID.format(NOW_MS + off_ms, NOW_MS - before_ms, NOW_MS + after_ms)


@given(st.integers(-(10**14), 10**14), st.integers(60_000, HOUR_MS))
def test_the_brokers_clock_is_what_its_message_says_whatever_its_bound(off_ms: int, bound_ms: int):
    accepted = AcceptedTimes.of(said(off_ms, bound_ms, bound_ms))
    assert accepted.broker_ms == NOW_MS
    text = str(clock_refused("k:9092", "t", said(off_ms, bound_ms, bound_ms), NOW_MS + off_ms))
    assert (f"{format_duration(abs(off_ms))} {'ahead of' if off_ms > 0 else 'behind'} the broker's") in text


def test_a_broker_is_understood_and_only_a_present_time_tried_again():
    accepted = AcceptedTimes.of(said(2 * HOUR_MS, before_ms=2**63 - 1 - NOW_MS))
    assert accepted.broker_ms == NOW_MS
    assert "which is not the time of the broker" in str(clock_refused("k:9092", "t", "", NOW_MS))
    assert not is_accepted_now("", NOW_MS)
    assert is_accepted_now(said(-9 * HOUR_MS), NOW_MS)
    assert not is_accepted_now(said(2 * HOUR_MS), NOW_MS + 2 * HOUR_MS)


def test_durations_are_in_words():
    durations = {0: "0 s", 119_000: "119 s", 900_000: "15 min", 7_200_000: "2 h", 90_060_000: "1 d 1 h 1 min"}
    assert {ms: format_duration(ms) for ms in durations} == durations


def test_every_topic_declares_its_bound_of_timestamps():
    specs = {spec.name: spec.configs for spec in declare_topics(Bus(prefix="p."))}
    for topic in ALL:
        assert clock_bounds(CLOCK_MS).items() <= specs[f"p.{topic.name}"].items()
    letters = [configs for name, configs in specs.items() if name.endswith(DEAD_LETTERS)]
    assert letters
    assert all(clock_bounds(CLOCK_MS).items() <= configs.items() for configs in letters)
    assert clock_ms(actions.TOPIC.shortest_ms) == actions.TOPIC.shortest_ms == 15 * 60_000
    assert clock_ms(None) == clock_ms(24 * CLOCK_MS) == CLOCK_MS
    assert clock_bounds(5) == {"message.timestamp.before.max.ms": "5", "message.timestamp.after.max.ms": "5"}
