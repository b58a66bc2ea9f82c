"""What is counted on the way of every step is exported like any other metric."""

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from dart_streams.telemetry.instruments import ObservedCounter, ObservedGauge


def exported(reader: InMemoryMetricReader) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    data = reader.get_metrics_data()
    if data is None:
        return {}
    metrics = [m for resource in data.resource_metrics for scope in resource.scope_metrics for m in scope.metrics]
    return {(m.name, tuple(p.attributes.items())): p.value for m in metrics for p in m.data.data_points}


def test_a_tally_is_exported_by_its_attributes_and_goes_on():
    reader = InMemoryMetricReader()
    steps = ObservedCounter(MeterProvider([reader], shutdown_on_exit=False).get_meter("test"), "steps")
    steps.add(1)
    steps.add(2, {"purpose": "train"})
    steps.add(3, {"purpose": "train"})
    assert exported(reader) == {("steps", ()): 1, ("steps", (("purpose", "train"),)): 5}
    steps.add(4)
    assert exported(reader)["steps", ()] == 5


def test_a_level_is_what_it_was_set_to_last_and_nothing_before():
    reader = InMemoryMetricReader()
    level = ObservedGauge(MeterProvider([reader], shutdown_on_exit=False).get_meter("test"), "in_flight")
    assert exported(reader) == {}
    level.set(7)
    level.set(0)
    assert exported(reader) == {("in_flight", ()): 0}
