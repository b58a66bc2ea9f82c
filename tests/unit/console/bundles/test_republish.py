"""Which records of a bundle are published again, in which order, and how fast: without a broker."""

from pathlib import Path

import pytest

from console.bundles.republish import TimeSpan, choose_topics, in_order, pace_records, shadow_topics
from console.cli.bundle import bound_of, speed_of
from console.runs.bundle import Bundle, BundleRecord, Manifest, Writer
from dart_streams.config import Bus, parse
from dart_streams.errors import UserError
from topics import Topic, curated, observations, trajectories

NOON_MS = 1_769_860_800_000
ALL = TimeSpan()


def record(partition: int, offset: int, at_ms: int) -> BundleRecord:
    return BundleRecord(partition, offset, at_ms, b"k", b"v", [])


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    path = tmp_path / "run.dart"
    with Writer(path, Manifest(run="r", prefix="dart.r.", captured_ms=1, schemas={})) as writer:
        writer.text("config.toml", "")
        writer.records(
            "trajectories", [record(0, 4, 10), record(0, 5, 40), record(1, 0, 20), record(0, 6, 30), record(1, 1, 50)]
        )
        writer.records("curated", [record(0, 0, 15), record(0, 1, 45)])
    return Bundle(path)


def order(bundle: Bundle, span: TimeSpan = ALL, *topics: Topic) -> list[tuple[str, int, int]]:
    wanted = topics or (trajectories.TOPIC, curated.TOPIC)
    return [(name, one.partition, one.offset) for name, one in in_order(bundle, wanted, span)]


def test_topics_are_merged_by_time_and_a_partition_keeps_its_order(bundle: Bundle):
    merged = order(bundle)
    assert len(merged) == 7
    for name, partition in {(name, partition) for name, partition, _ in merged}:
        offsets = [offset for *place, offset in merged if place == [name, partition]]
        assert offsets == sorted(offsets)
    assert [name for name, *_ in merged][:2] == ["trajectories", "curated"]
    assert order(bundle, ALL, curated.TOPIC) == [("curated", 0, 0), ("curated", 0, 1)]


def test_bounds_are_offsets_or_times_inclusive_and_exclusive(bundle: Bundle):
    only = (trajectories.TOPIC,)
    assert order(bundle, TimeSpan(5, 6), *only) == [("trajectories", 0, 5)]
    assert order(bundle, TimeSpan(None, 1), *only) == [("trajectories", 1, 0)]
    timed = TimeSpan(20, 40, timed_from=True, timed_until=True)
    assert sorted(order(bundle, timed, *only)) == [("trajectories", 0, 6), ("trajectories", 1, 0)]
    late = order(bundle, TimeSpan(40, None, timed_from=True))
    assert sorted(late) == [("curated", 0, 1), ("trajectories", 0, 5), ("trajectories", 1, 1)]
    assert order(bundle, TimeSpan(5, 15, timed_until=True), *only) == []


class Clock:
    """A clock that only waiting advances."""

    def __init__(self) -> None:
        self.now = 100.0
        self.waits: list[float] = []

    def wait(self, seconds: float) -> None:
        self.waits.append(round(seconds, 6))
        self.now += seconds


def records_at(*times_ms: int) -> list[tuple[str, BundleRecord]]:
    return [("t", BundleRecord(0, n, NOON_MS + at_ms, None, b"", [])) for n, at_ms in enumerate(times_ms)]


@pytest.mark.parametrize(
    ("speed", "waits"), [("1x", [2.0, 1.0]), ("10x", [0.2, 0.1]), ("0.5", [4.0, 2.0]), ("max", [])]
)
def test_the_speed_is_a_multiple_of_the_recorded_one(speed: str, waits: list[float]):
    clock = Clock()
    list(pace_records(records_at(0, 2000, 1500, 3000), speed_of(speed), clock.wait, lambda: clock.now))
    assert clock.waits == waits


def test_a_late_record_is_published_without_waiting():
    clock = Clock()
    paced = pace_records(records_at(0, 3000, 6000), 1.0, clock.wait, lambda: clock.now)
    next(paced)
    clock.now += 5
    assert len(list(paced)) == 2
    assert clock.waits == [1.0]


@pytest.mark.parametrize("text", ["", "0", "-1x", "fast", "nan", "infx"])
def test_an_invalid_speed_is_refused(text: str):
    with pytest.raises(UserError, match=r"--speed .*give max, or a multiple"):
        speed_of(text)


def test_a_bound_is_an_offset_or_a_time_and_topics_are_those_named_or_all(bundle: Bundle):
    assert bound_of("") == (None, False)
    assert bound_of("12") == (12, False)
    assert bound_of("2026-01-31T12:00:00+00:00") == (NOON_MS, True)
    with pytest.raises(UserError, match="neither an offset nor a time"):
        bound_of("yesterday")
    assert choose_topics(bundle, []) == [trajectories.TOPIC, curated.TOPIC]
    assert choose_topics(bundle, ["curated"]) == [curated.TOPIC]
    with pytest.raises(UserError, match="no topic 'curatd'"):
        choose_topics(bundle, ["curatd"])


def test_a_record_asks_for_no_more_partitions_than_the_deployment_has(tmp_path: Path):
    with Writer(tmp_path / "run.dart", Manifest(run="r", prefix="dart.r.", captured_ms=1, schemas={})) as writer:
        writer.records("observations", [record(9_999, 0, 10)])
        writer.records("curated", [record(1, 0, 10)])
    bundle, wide = Bundle(tmp_path / "run.dart"), parse({"bus": {"topics": {"partitions": 10_000}}}).bus
    with pytest.raises(UserError, match=r"in 10000 partitions, and this deployment 4: set bus\.topics\.partitions"):
        shadow_topics(bundle, Bus(), [observations.TOPIC])
    assert [spec.partitions for spec in shadow_topics(bundle, wide, [observations.TOPIC])] == [10_000]
    with pytest.raises(UserError, match="curated in 2 partitions, and this deployment 1: this topic can't have more"):
        shadow_topics(bundle, wide, [curated.TOPIC])
