"""Metrics and spans as JSON lines in the run's folder: nothing to install, and the report reads them back."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from opentelemetry.sdk.metrics import Histogram
from opentelemetry.sdk.metrics.export import (
    ExponentialHistogramDataPoint,
    MetricExporter,
    MetricExportResult,
    MetricsData,
)
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

MS_NS = 1_000_000
_span_lines = msgspec.json.Encoder(enc_hook=str)


class LineMetricExporter(MetricExporter):
    """Appends one line an export to ``path``; a full disk costs the line, never the process."""

    def __init__(self, path: Path, process: str) -> None:
        super().__init__(preferred_aggregation={Histogram: ExponentialBucketHistogramAggregation()})
        self.path = path
        self.process = process

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: Any) -> MetricExportResult:
        """Write the present value of every instrument (cumulative since the process started)."""
        points = [
            point_of(metric.name, point)
            for resource in metrics_data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
        ]
        if not points:
            return MetricExportResult.SUCCESS
        line = {"at_ms": max(point["at_ms"] for point in points), "process": self.process, "points": points}
        return MetricExportResult.SUCCESS if append(self.path, [line]) else MetricExportResult.FAILURE

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Do nothing: every export is written at once."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:
        """Do nothing: no file stays open."""


MOST_BYTES = 64 * 1024 * 1024
MOST_FILES = 16


class LineSpanExporter(SpanExporter):
    """Appends one line a span to ``path``; a full file becomes ``<name>.1.jsonl``, and the oldest of these goes."""

    def __init__(self, path: Path, process: str, most_bytes: int = MOST_BYTES) -> None:
        self.path = path
        self.process = process
        self.most_bytes = most_bytes

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write ended spans and say whether that worked."""
        rotate(self.path, self.most_bytes)
        text = _span_lines.encode_lines([span_fields(span, self.process) for span in spans])
        return SpanExportResult.SUCCESS if append_bytes(self.path, text) else SpanExportResult.FAILURE


def rotate(path: Path, most_bytes: int) -> None:
    """Give way to a new file if this one is full; a disk that refuses keeps the old one growing."""
    try:
        if not path.exists() or path.stat().st_size < most_bytes:
            return
        for number in range(MOST_FILES - 1, 0, -1):
            older = path.with_name(f"{path.stem}.{number}.jsonl")
            if older.exists():
                older.replace(path.with_name(f"{path.stem}.{number + 1}.jsonl"))
        path.replace(path.with_name(f"{path.stem}.1.jsonl"))
        path.with_name(f"{path.stem}.{MOST_FILES}.jsonl").unlink(missing_ok=True)
    except OSError:
        return


def append(path: Path, lines: Sequence[dict[str, Any]]) -> bool:
    """Append JSON lines to a file and say whether that worked."""
    text = "".join(json.dumps(line, separators=(",", ":"), default=str) + "\n" for line in lines)
    return append_bytes(path, text.encode())


def append_bytes(path: Path, data: bytes) -> bool:
    """Append to a file and say whether that worked."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(data)
    except OSError:
        return False
    return True


def point_of(name: str, point: Any) -> dict[str, Any]:
    """Return a data point as plain values; ``start_ms`` tells a restarted process from the one before it.

    Times keep their fractions of a millisecond: two flushes, or two starts, may fall into the same one.
    """
    fields: dict[str, Any] = {
        "name": name,
        "attributes": dict(point.attributes or {}),
        "start_ms": (point.start_time_unix_nano or 0) / MS_NS,
        "at_ms": point.time_unix_nano / MS_NS,
    }
    if isinstance(point, ExponentialHistogramDataPoint):
        return fields | {
            "count": point.count,
            "sum": point.sum,
            "min": point.min,
            "max": point.max,
            "scale": point.scale,
            "zero_count": point.zero_count,
            "offset": point.positive.offset,
            "buckets": list(point.positive.bucket_counts),
        }
    return fields | {"value": point.value}


def span_fields(span: ReadableSpan, process: str) -> dict[str, Any]:
    """Return an ended span as plain values."""
    context = span.context
    return {
        "process": process,
        "name": span.name,
        "trace": f"{context.trace_id:032x}" if context else None,
        "span": f"{context.span_id:016x}" if context else None,
        "parent": f"{span.parent.span_id:016x}" if span.parent else None,
        "start_ms": (span.start_time or 0) / MS_NS,
        "end_ms": (span.end_time or 0) / MS_NS,
        "status": span.status.status_code.name,
        "failure": span.status.description or "",
        "attributes": dict(span.attributes or {}),
        "links": [f"{link.context.trace_id:032x}:{link.context.span_id:016x}" for link in span.links],
    }
