"""OpenTelemetry's instruments, made as :mod:`dart_streams.telemetry.names` declares them.

Counters and gauges of the hot path are observable instruments, which are read only for an export. The SDK's
synchronous instruments take some ten microseconds a call, and a step makes a dozen calls.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Meter, Observation

from dart_streams.telemetry.instrument import BOUNDS, Instrument

Read = Callable[[CallbackOptions], Iterable[Observation]]


def create_counter(meter: Meter, own: Instrument) -> metrics.Counter:
    """Create a counter."""
    return meter.create_counter(str(own), own.unit, own.meaning)


def create_gauge(meter: Meter, own: Instrument) -> metrics._Gauge:
    """Create a gauge."""
    return meter.create_gauge(str(own), own.unit, own.meaning)


def create_histogram(meter: Meter, own: Instrument) -> metrics.Histogram:
    """Create a histogram with the buckets of its unit; those of the run's folder are exponential."""
    return meter.create_histogram(str(own), own.unit, own.meaning, explicit_bucket_boundaries_advisory=BOUNDS[own.unit])


def observe_counter(meter: Meter, own: Instrument, read: Read) -> None:
    """Create a counter whose totals ``read`` returns."""
    meter.create_observable_counter(str(own), [read], own.unit, own.meaning)


def observe_gauge(meter: Meter, own: Instrument, read: Read) -> None:
    """Create a gauge whose values ``read`` returns."""
    meter.create_observable_gauge(str(own), [read], own.unit, own.meaning)


class ObservedCounter:
    """A counter, for use by one thread."""

    def __init__(self, meter: Meter, own: Instrument) -> None:
        self._totals: Counter[tuple[tuple[str, str], ...]] = Counter()
        observe_counter(meter, own, self._read)

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

    def __init__(self, meter: Meter, own: Instrument) -> None:
        self.value: float | None = None
        observe_gauge(meter, own, self._read)

    def set(self, value: float) -> None:
        """Set the value."""
        self.value = value

    def _read(self, _options: CallbackOptions) -> Iterable[Observation]:
        return [] if self.value is None else [Observation(self.value)]
