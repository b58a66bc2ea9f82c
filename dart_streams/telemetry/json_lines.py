"""Exporters of metrics and spans to JSON lines in the run's folder, which the report reads."""

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
    """Appends one line an export to ``path``; if that fails, the line is lost."""

    def __init__(self, path: Path, process: str) -> None:
        super().__init__(preferred_aggregation={Histogram: ExponentialBucketHistogramAggregation()})
        self.path = path
        self.process = process

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: Any) -> MetricExportResult:
        """Write the value of every instrument (cumulative since the process started)."""
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


MAX_BYTES = 64 * 1024 * 1024
MAX_FILES = 16


class LineSpanExporter(SpanExporter):
    """Appends one line a span to ``path``; a full file is rotated to ``<name>.1.jsonl``, and the oldest is removed."""

    def __init__(self, path: Path, process: str, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self.process = process
        self.max_bytes = max_bytes

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write ended spans."""
        rotate(self.path, self.max_bytes)
        text = _span_lines.encode_lines([span_fields(span, self.process) for span in spans])
        return SpanExportResult.SUCCESS if append_bytes(self.path, text) else SpanExportResult.FAILURE


def rotate(path: Path, max_bytes: int) -> None:
    """Rotate the file if it is full; if that fails, it keeps growing."""
    try:
        if not path.exists() or path.stat().st_size < max_bytes:
            return
        for number in range(MAX_FILES - 1, 0, -1):
            older = path.with_name(f"{path.stem}.{number}.jsonl")
            if older.exists():
                older.replace(path.with_name(f"{path.stem}.{number + 1}.jsonl"))
        path.replace(path.with_name(f"{path.stem}.1.jsonl"))
        path.with_name(f"{path.stem}.{MAX_FILES}.jsonl").unlink(missing_ok=True)
    except OSError:
        return


def append(path: Path, lines: Sequence[dict[str, Any]]) -> bool:
    """Append JSON lines to a file; return whether that worked."""
    text = "".join(json.dumps(line, separators=(",", ":"), default=str) + "\n" for line in lines)
    return append_bytes(path, text.encode())


def append_bytes(path: Path, data: bytes) -> bool:
    """Append to a file; return whether that worked."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(data)
    except OSError:
        return False
    return True


def point_of(name: str, point: Any) -> dict[str, Any]:
    """Return a data point as plain values; ``start_ms`` distinguishes a restarted process from the one before.

    Times have fractions of a millisecond: two flushes, or two starts, may fall into the same one.
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
