"""Reads counters and histograms over a span of time from a run's metrics files.

Values are cumulative since the start of a process, whose time distinguishes restarts.
"""

import contextlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Self, TypeVar

import msgspec

from console.runs.run_folder import exported_files
from dart_streams.config.text import MALFORMED

T = TypeVar("T")
LINE_BYTES = 2**22  # The rest of a longer line is read as another one, which has no form of ours.
Series = tuple[str, str, float]
"""Process, attributes as JSON, and start of the process."""


class ExportedPoint(msgspec.Struct, frozen=True):
    """A counter's value, or an exponential histogram, at a time; bounds are those of OpenTelemetry's data model."""

    name: str
    attributes: dict[str, str | int | float | bool]
    start_ms: float
    at_ms: Annotated[float, msgspec.Meta(ge=0, le=1e14)]
    value: int | float = 0
    sum: float = 0.0
    scale: Annotated[int, msgspec.Meta(ge=-10, le=20)] = 0
    zero_count: int = 0
    offset: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)] = 0
    buckets: list[int] = []


class ExportedLine(msgspec.Struct, frozen=True):
    """What a process exports at a time."""

    process: str
    points: list[msgspec.Raw] = []


class Distribution(msgspec.Struct, frozen=True):
    """An exponential histogram: bucket ``i`` counts values in (base**i, base**(i+1)], base = 2**(2**-scale)."""

    scale: int
    buckets: dict[int, int]
    zeros: int = 0
    total: float = 0.0

    @classmethod
    def of(cls, point: ExportedPoint) -> Self:
        """Read a data point."""
        buckets = {point.offset + i: count for i, count in enumerate(point.buckets) if count}
        return cls(point.scale, buckets, point.zero_count, point.sum)

    @property
    def count(self) -> int:
        """The number of values."""
        return self.zeros + sum(self.buckets.values())

    @property
    def mean(self) -> float | None:
        """The mean of the values."""
        return self.total / self.count if self.count else None

    def at_scale(self, scale: int) -> Self:
        """Return the histogram at a coarser scale."""
        buckets: Counter[int] = Counter()
        for index, count in self.buckets.items():
            buckets[index >> (self.scale - scale)] += count
        return msgspec.structs.replace(self, scale=scale, buckets=dict(buckets))

    def add(self, other: Self, sign: int = 1) -> Self:
        """Return the sum with another histogram, or with ``sign`` -1 the difference."""
        scale = min(self.scale, other.scale)
        mine, theirs = self.at_scale(scale), other.at_scale(scale)
        buckets = Counter(mine.buckets)
        buckets.update({index: sign * count for index, count in theirs.buckets.items()})
        return msgspec.structs.replace(
            mine,
            buckets=dict(+buckets),
            zeros=max(0, mine.zeros + sign * theirs.zeros),
            total=mine.total + sign * theirs.total,
        )

    def quantile(self, share: float) -> float | None:
        """Return the value below which ``share`` of the values lie, to within a bucket; None without values."""
        if not self.count:
            return None
        rank = share * self.count
        seen = float(self.zeros)
        if seen >= rank and self.zeros:
            return 0.0
        growth = 2.0**-self.scale
        for index, count in sorted(self.buckets.items()):
            if seen + count >= rank:
                return math.exp2((index + (rank - seen) / count) * growth)
            seen += count
        return math.exp2((max(self.buckets) + 1) * growth)


class MetricsReader:
    """All metrics in a folder; a ``folder`` of None has none."""

    def __init__(self, folder: Path | None) -> None:
        self.points: dict[str, dict[Series, list[ExportedPoint]]] = {}
        for path in exported_files(folder) if folder is not None else ():
            for line in read_lines(path, ExportedLine):
                for point in decode_texts(line.points, ExportedPoint):
                    series = (line.process, json.dumps(point.attributes, sort_keys=True), point.start_ms)
                    self.points.setdefault(point.name, {}).setdefault(series, []).append(point)

    def counter(self, name: str, from_ms: float = 0, to_ms: float = math.inf, **attributes: str) -> float:
        """Return the growth of a counter in a span, over all processes."""
        return sum(
            end.value - (begin.value if begin else 0) for begin, end in self.spans(name, from_ms, to_ms, attributes)
        )

    def by_attribute(
        self, name: str, attribute: str, from_ms: float = 0, to_ms: float = math.inf, **others: str
    ) -> dict[str, float]:
        """Return the growth of a counter in a span, by the values of one attribute; ``others`` select series."""
        values = {str(json.loads(series[1]).get(attribute, "")) for series in self.points.get(name, {})}
        return {value: self.counter(name, from_ms, to_ms, **others, **{attribute: value}) for value in sorted(values)}

    def growth(self, name: str, attribute: str, width_ms: int) -> dict[int, dict[str, float]]:
        """Return the growth of a counter in each slice of ``width_ms``, by the values of one attribute."""
        result: dict[int, dict[str, float]] = {}
        for (_, text, _), points in self.points.get(name, {}).items():
            value = str(json.loads(text).get(attribute, ""))
            for earlier, later in zip([0, *(point.value for point in points)], points, strict=False):
                part = result.setdefault(int(later.at_ms // width_ms), {})
                part[value] = part.get(value, 0.0) + later.value - earlier
        return result

    def distribution(
        self, name: str, from_ms: float = 0, to_ms: float = math.inf, **attributes: str
    ) -> Distribution | None:
        """Return a histogram over a span, over all processes; None if no process has it."""
        whole: Distribution | None = None
        for begin, end in self.spans(name, from_ms, to_ms, attributes):
            part = Distribution.of(end)
            if begin:
                part = part.add(Distribution.of(begin), -1)
            whole = part if whole is None else whole.add(part)
        return whole

    def spans(
        self, name: str, from_ms: float, to_ms: float, attributes: dict[str, str]
    ) -> Iterator[tuple[ExportedPoint | None, ExportedPoint]]:
        """Yield each series' last point before the span (None if it began in the span), and its last point in it."""
        for (_, text, _), points in self.points.get(name, {}).items():
            if not attributes.items() <= json.loads(text).items():
                continue
            before = [point for point in points if point.at_ms <= from_ms]
            inside = [point for point in points if from_ms < point.at_ms <= to_ms]
            if inside:
                yield (before[-1] if before else None), inside[-1]


def read_lines(path: Path, form: type[T]) -> Iterator[T]:
    """Yield a file's JSON lines of a form, without a truncated one."""
    with path.open("rb") as file:
        yield from decode_texts(iter(lambda: file.readline(LINE_BYTES), b""), form)


def decode_texts(texts: Iterable[bytes | msgspec.Raw], form: type[T]) -> Iterator[T]:
    """Yield the JSON texts that have a form; those of a restored run may be anybody's."""
    decoder = msgspec.json.Decoder(form)
    for text in texts:
        with contextlib.suppress(*MALFORMED):
            yield decoder.decode(text)
