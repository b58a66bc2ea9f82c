"""Instruments have the unit, description and buckets of their declaration, and so has the documentation."""

from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from dart_streams.telemetry import names
from dart_streams.telemetry.instrument import BOUNDS
from dart_streams.telemetry.instruments import (
    ObservedCounter,
    ObservedGauge,
    create_counter,
    create_gauge,
    create_histogram,
)
from dart_streams.telemetry.names import BY_NAME
from docs.reference import metrics_page

PAGE = Path(__file__).parents[3] / "docs/metrics.md"
CREATE = {"counter": create_counter, "gauge": create_gauge, "histogram": create_histogram}
UNITS = {"ms", "s", "1"}
"""Units of UCUM that instruments have, beside ``{things}``."""


def exported(reader: InMemoryMetricReader) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    data = reader.get_metrics_data()
    if data is None:
        return {}
    metrics = [m for resource in data.resource_metrics for scope in resource.scope_metrics for m in scope.metrics]
    return {(m.name, tuple(p.attributes.items())): p.value for m in metrics for p in m.data.data_points}


def test_a_tally_goes_on_and_a_level_is_what_it_was_set_to_last():
    reader = InMemoryMetricReader()
    steps = ObservedCounter(MeterProvider([reader], shutdown_on_exit=False).get_meter("test"), names.ENV_STEPS)
    steps.add(1)
    steps.add(2, {"purpose": "train"})
    steps.add(3, {"purpose": "train"})
    assert exported(reader) == {(names.ENV_STEPS, ()): 1, (names.ENV_STEPS, (("purpose", "train"),)): 5}
    steps.add(4)
    assert exported(reader)[names.ENV_STEPS, ()] == 5
    reader = InMemoryMetricReader()
    level = ObservedGauge(MeterProvider([reader], shutdown_on_exit=False).get_meter("test"), names.ROLLOUT_IN_FLIGHT)
    assert exported(reader) == {}
    level.set(7)
    level.set(0)
    assert exported(reader) == {(names.ROLLOUT_IN_FLIGHT, ()): 0}


@pytest.mark.parametrize("instrument", BY_NAME.values())
def test_an_instrument_is_exported_with_its_unit_and_description(instrument):
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader], shutdown_on_exit=False).get_meter("test")
    made = CREATE[instrument.kind](meter, instrument)
    use = {"counter": "add", "gauge": "set", "histogram": "record"}[instrument.kind]
    getattr(made, use)(1)
    data = reader.get_metrics_data()
    assert data is not None
    [metric] = data.resource_metrics[0].scope_metrics[0].metrics
    assert (metric.name, metric.unit, metric.description) == (instrument, instrument.unit, instrument.meaning)
    assert instrument.unit in UNITS or (instrument.unit[0], instrument.unit[-1]) == ("{", "}")
    assert instrument.endswith("_ms") == (instrument.unit == "ms")
    assert instrument.meaning.endswith(".")


@pytest.mark.parametrize("took_ms", [15_000, 60_000, 280_000])
def test_buckets_hold_answers_of_minutes(took_ms: float):
    at = next(number for number, bound in enumerate(BOUNDS["ms"]) if bound >= took_ms)
    assert BOUNDS["ms"][at] <= 2.5 * BOUNDS["ms"][at - 1]


def test_a_histogram_of_each_unit_has_buckets():
    assert {instrument.unit for instrument in BY_NAME.values() if instrument.kind == "histogram"} == set(BOUNDS)


def test_the_page_has_the_table():
    assert PAGE.read_text() == metrics_page(), "write it again: make reference"
    assert all(f"| `{name}` |" in PAGE.read_text() for name in BY_NAME)
