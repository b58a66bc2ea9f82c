"""Instruments with the unit and description that :mod:`dart_streams.telemetry.instrument_table` has of their name.

Counters and gauges of the hot path are observable instruments, which are read only for an export. The SDK's
synchronous instruments take some ten microseconds a call, and a step makes a dozen calls.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Meter, Observation

from dart_streams.telemetry.instrument_table import BOUNDS, BY_NAME, Instrument, Kind

Read = Callable[[CallbackOptions], Iterable[Observation]]


def find_instrument(name: str, kind: Kind) -> Instrument:
    """Return an instrument of the table; raise LookupError if it has none of this name and kind."""
    instrument = BY_NAME.get(name)
    if instrument is None or instrument.kind != kind:
        raise LookupError(f"the table of instruments has no {kind} {name!r}: add it to instrument_table.py")
    return instrument


def create_counter(meter: Meter, name: str) -> metrics.Counter:
    """Create a counter."""
    own = find_instrument(name, "counter")
    return meter.create_counter(name, own.unit, own.meaning)


def create_gauge(meter: Meter, name: str) -> metrics._Gauge:
    """Create a gauge."""
    own = find_instrument(name, "gauge")
    return meter.create_gauge(name, own.unit, own.meaning)


def create_histogram(meter: Meter, name: str) -> metrics.Histogram:
    """Create a histogram with the buckets of its unit; those of the run's folder are exponential."""
    own = find_instrument(name, "histogram")
    return meter.create_histogram(name, own.unit, own.meaning, explicit_bucket_boundaries_advisory=BOUNDS[own.unit])


def observe_counter(meter: Meter, name: str, read: Read) -> None:
    """Create a counter whose totals ``read`` returns."""
    own = find_instrument(name, "counter")
    meter.create_observable_counter(name, [read], own.unit, own.meaning)


def observe_gauge(meter: Meter, name: str, read: Read) -> None:
    """Create a gauge whose values ``read`` returns."""
    own = find_instrument(name, "gauge")
    meter.create_observable_gauge(name, [read], own.unit, own.meaning)


class ObservedCounter:
    """A counter, for use by one thread."""

    def __init__(self, meter: Meter, name: str) -> None:
        self._totals: Counter[tuple[tuple[str, str], ...]] = Counter()
        observe_counter(meter, name, self._read)

    def add(self, count: int, attributes: Mapping[str, str] | None = None) -> None:
        """Add ``count``."""
        self._totals[tuple(attributes.items()) if attributes else ()] += count

    @property
    def total(self) -> int:
        """The sum over all attributes."""
        return self._totals.total()

    @property
    def totals(self) -> dict[tuple[tuple[str, str], ...], int]:
        """The counts by attributes."""
        return dict(self._totals)

    def _read(self, _options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(total, dict(attributes)) for attributes, total in list(self._totals.items())]


class ObservedGauge:
    """A gauge of the last value."""

    def __init__(self, meter: Meter, name: str) -> None:
        self.value: float | None = None
        observe_gauge(meter, name, self._read)

    def set(self, value: float) -> None:
        """Set the value."""
        self.value = value

    def _read(self, _options: CallbackOptions) -> Iterable[Observation]:
        return [] if self.value is None else [Observation(self.value)]
