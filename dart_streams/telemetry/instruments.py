"""Counters and gauges of the hot path: observable instruments, which are read only for an export.

The SDK's synchronous instruments take some ten microseconds a call, and a step makes a dozen calls.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from opentelemetry.metrics import CallbackOptions, Meter, Observation


class ObservedCounter:
    """A counter, for use by one thread."""

    def __init__(self, meter: Meter, name: str) -> None:
        self._totals: Counter[tuple[tuple[str, str], ...]] = Counter()
        meter.create_observable_counter(name, [self._read])

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
        meter.create_observable_gauge(name, [self._read])

    def set(self, value: float) -> None:
        """Set the value."""
        self.value = value

    def _read(self, _options: CallbackOptions) -> Iterable[Observation]:
        return [] if self.value is None else [Observation(self.value)]
