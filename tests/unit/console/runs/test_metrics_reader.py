"""Metrics written as lines are read back over a span of time."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.json import encode
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import NumberDataPoint, PeriodicExportingMetricReader

from console.runs.metrics_reader import Distribution, MetricsReader
from console.runs.process_usage import read_usage
from dart_streams.telemetry.exporters import LineMetricExporter, append, point_of

LIVES = ((0, 0, 5), (0, 400_000, 8), (300_000, 900_000, 2))
"""Start, time (nanoseconds) and value of points of one counter: two of a life, one of the next."""


class Process:
    """A process that measures into ``folder``."""

    def __init__(self, folder, name="env-0"):
        self.reader = PeriodicExportingMetricReader(LineMetricExporter(folder / f"{name}.jsonl", name), 3_600_000)
        self.provider = MeterProvider([self.reader], shutdown_on_exit=False)
        self.meter = self.provider.get_meter("test")

    def flush(self):
        self.provider.force_flush()
        return max(p.at_ms for p in points(self))

    def stop(self):
        self.provider.shutdown()


def points(process):
    by_name = MetricsReader(process.reader._exporter.path.parent).points.values()
    return [point for series in by_name for of_life in series.values() for point in of_life]


def test_a_counter_sums_processes_and_lives(tmp_path):
    for name in ("env-0", "env-1", "env-0"):
        process = Process(tmp_path, name)
        process.meter.create_counter("steps").add(5, {"purpose": "train"})
        process.meter.create_counter("steps").add(2, {"purpose": "eval"})
        process.stop()
    readings = MetricsReader(tmp_path)
    assert readings.counter("steps") == 21
    assert readings.counter("steps", purpose="train") == 15
    assert readings.by_attribute("steps", "purpose") == {"train": 15, "eval": 6}
    assert readings.counter("nobody has it") == 0


def test_a_span_leaves_out_values_before_and_after(tmp_path):
    process = Process(tmp_path)
    counter, histogram = process.meter.create_counter("steps"), process.meter.create_histogram("took_ms")
    counter.add(5)
    for _ in range(100):
        histogram.record(1000.0)
    middle = process.flush()
    counter.add(3)
    for _ in range(10):
        histogram.record(10.0)
    process.stop()
    readings = MetricsReader(tmp_path)
    assert readings.counter("steps", middle) == 3
    assert readings.counter("steps", 0, middle) == 5
    late = readings.distribution("took_ms", middle)
    assert late.count == 10
    assert late.mean == pytest.approx(10)
    assert late.quantile(0.5) == pytest.approx(10, rel=0.1)


def test_two_flushes_in_one_millisecond_are_distinct(tmp_path):
    data = [NumberDataPoint({}, 10**18 + start, 10**18 + 5_000 + at, value) for start, at, value in LIVES]
    exporter = LineMetricExporter(tmp_path / "env-0.jsonl", "env-0")
    for point in data:
        append(exporter.path, [{"process": "env-0", "points": [point_of("steps", point)]}])
    readings = MetricsReader(tmp_path)
    first, _, last = sorted(p.at_ms for series in readings.points["steps"].values() for p in series)
    assert int(first) == int(last)
    assert readings.counter("steps", first) == 3 + 2
    assert readings.counter("steps", 0, first) == 5
    assert list(readings.growth("steps", "purpose", 1000)) == [10**18 // 10**9]


POINT = {"name": "steps", "attributes": {}, "start_ms": 1, "at_ms": 2, "value": 70}
WRONG = [("at_ms", 1e300), ("value", "70"), ("attributes", {"a": [[]]}), ("scale", 10**9), ("buckets", {})]
LINES = (b'{"at_ms": 12, "poi', b"[]", b"7", b'{"process": 7, "points": []}', b"\xff\xfe", b"[" * 5000)


@pytest.mark.parametrize(
    "line", [*LINES, *(encode({"process": "a", "points": [POINT | dict([wrong])]}) for wrong in WRONG)]
)
def test_lines_and_points_of_other_forms_are_left_out(tmp_path, line):
    process = Process(tmp_path)
    process.meter.create_counter("steps").add(1)
    process.stop()
    with (tmp_path / "env-0.jsonl").open("ab") as file:
        file.write(line + b"\n" + encode({"process": "b", "points": [{}, POINT | {"value": 2}]}))
    assert MetricsReader(tmp_path).counter("steps") == 1 + 2
    assert read_usage(tmp_path / "env-0.jsonl") == []


@given(st.lists(st.floats(0.01, 1e5), min_size=1, max_size=200), st.sampled_from([0.1, 0.5, 0.9, 0.99]))
def test_a_quantile_is_within_a_bucket_of_the_true_one(tmp_path_factory, values, share):
    folder = tmp_path_factory.mktemp("metrics")
    process = Process(folder)
    for value in values:
        process.meter.create_histogram("took_ms").record(value)
    process.stop()
    read = MetricsReader(folder).distribution("took_ms")
    ordered = sorted(values)
    true = ordered[max(0, -(-int(share * 1e9) * len(ordered) // 10**9) - 1)]
    growth = 2**2.0**-read.scale
    assert true / growth * 0.999 <= read.quantile(share) <= true * growth * 1.001
    assert read.count == len(values)


def test_histograms_of_different_scales_add_up():
    rng = random.Random(1)
    fine = Distribution(3, {rng.randrange(40): 1 for _ in range(20)}, total=1.0)
    coarse = Distribution(0, {2: 5}, zeros=1, total=2.0)
    both = fine.add(coarse)
    assert both.scale == 0
    assert both.count == fine.count + 6
    assert both.add(coarse, -1).count == fine.count
