"""Exporters of metrics and spans: JSON lines in the run's folder, which the report reads, and a collector.

``telemetry.spans.dropped`` counts the spans that find the SDK's queue full and those of failed exports, because the
SDK counts neither.
"""

import contextlib
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog
from opentelemetry import metrics
from opentelemetry.sdk.metrics import Histogram
from opentelemetry.sdk.metrics.export import (
    ExponentialHistogramDataPoint,
    MetricExporter,
    MetricExportResult,
    MetricsData,
)
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import StatusCode

from dart_streams.disk_room import make_private
from dart_streams.telemetry import names
from dart_streams.telemetry.instruments import create_counter
from dart_streams.telemetry.spans import ActiveSpan

MS_NS = 1_000_000
MAX_BYTES = 64 * 1024 * 1024
MAX_FILES = 16
MAX_QUEUE = 8192
"""Maximum number of spans queued or being exported; further spans are dropped without a wait."""
BATCH = 1024
EXPORT_INTERVAL_S = 1.0
COLLECTOR_TIMEOUT_S = 2
"""An unreachable collector delays the end of a process by at most this."""

log = structlog.get_logger()
_lines = msgspec.json.Encoder(enc_hook=str)


class LineMetricExporter(MetricExporter):
    """Appends one line per export to ``path``; a line that cannot be written is lost."""

    def __init__(self, path: Path, process: str) -> None:
        super().__init__(preferred_aggregation={Histogram: ExponentialBucketHistogramAggregation()})
        self.path = path
        self.process = process

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: Any) -> MetricExportResult:
        """Write the value of every instrument, cumulative since the start of the process."""
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
        """Do nothing: exports are written immediately."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:
        """Do nothing: no file stays open."""


class LineSpanExporter(SpanExporter):
    """Appends one line per span to ``path``; full files rotate to ``<name>.N.jsonl``, and the oldest is removed."""

    def __init__(self, path: Path, process: str) -> None:
        self.path = path
        self.process = process

    def export(self, spans: Sequence[ReadableSpan | ActiveSpan]) -> SpanExportResult:
        """Write ended spans."""
        rotate(self.path)
        lines = [
            span_fields(span, self.process) if isinstance(span, ActiveSpan) else sdk_fields(span, self.process)
            for span in spans
        ]
        written = append(self.path, lines)
        return SpanExportResult.SUCCESS if written else SpanExportResult.FAILURE


def rotate(path: Path) -> None:
    """Rotate a file of :data:`MAX_BYTES` or more; a file that cannot be rotated keeps growing."""
    with contextlib.suppress(OSError):
        if not path.exists() or path.stat().st_size < MAX_BYTES:
            return
        for number in range(MAX_FILES - 1, 0, -1):
            older = path.with_name(f"{path.stem}.{number}.jsonl")
            if older.exists():
                older.replace(path.with_name(f"{path.stem}.{number + 1}.jsonl"))
        path.replace(path.with_name(f"{path.stem}.1.jsonl"))
        path.with_name(f"{path.stem}.{MAX_FILES}.jsonl").unlink(missing_ok=True)


def append(path: Path, lines: Sequence[dict[str, Any]]) -> bool:
    """Append JSON lines to a file; return whether that succeeded."""
    try:
        make_private(path.parent)
        with path.open("ab") as file:
            file.write(_lines.encode_lines(lines))
    except OSError:
        return False
    return True


def point_of(name: str, point: Any) -> dict[str, Any]:
    """Return a data point as plain values; ``start_ms`` distinguishes the starts of a process.

    Times have fractions, since two flushes or starts may fall into one millisecond.
    """
    fields: dict[str, Any] = {
        "name": name,
        "attributes": dict(point.attributes or {}),
        "start_ms": (point.start_time_unix_nano or 0) / MS_NS,
        "at_ms": point.time_unix_nano / MS_NS,
    }
    if isinstance(point, ExponentialHistogramDataPoint):
        return fields | {
            **{field: getattr(point, field) for field in ("count", "sum", "min", "max", "scale", "zero_count")},
            "offset": point.positive.offset,
            "buckets": list(point.positive.bucket_counts),
        }
    return fields | {"value": point.value}


def span_fields(span: ActiveSpan, process: str) -> dict[str, Any]:
    """Return an ended span as plain values."""
    ref = span.ref
    return {
        "process": process,
        "name": span.name,
        "trace": f"{ref.trace_id:032x}",
        "span": f"{ref.span_id:016x}",
        "parent": f"{span.parent_id:016x}" if span.parent_id else None,
        "start_ms": span.started_ns / MS_NS,
        "end_ms": span.ended_ns / MS_NS,
        "status": (StatusCode.ERROR if span.failure else StatusCode.UNSET).name,
        "failure": span.failure,
        "attributes": span.attributes,
        "links": [f"{link.trace_id:032x}:{link.span_id:016x}" for link in span.links],
    }


def sdk_fields(span: ReadableSpan, process: str) -> dict[str, Any]:
    """Return an ended span of a library as plain values."""
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


class SdkSpans(SpanExporter):
    """Exports through ``exporter``, for which our spans become the SDK's, of this resource."""

    def __init__(self, exporter: SpanExporter, resource: Resource) -> None:
        self.exporter = exporter
        self.resource = resource

    def export(self, spans: Sequence[ReadableSpan | ActiveSpan]) -> SpanExportResult:
        """Export ended spans."""
        return self.exporter.export(
            [span.to_sdk(self.resource) if isinstance(span, ActiveSpan) else span for span in spans]
        )

    def shutdown(self) -> None:
        """Shut the exporter down."""
        self.exporter.shutdown()


def collector_exporters(endpoint: str, resource: Resource) -> tuple[MetricExporter, SpanExporter]:
    """Return OTLP exporters over HTTP; the SDK's default buckets of histograms suit milliseconds."""
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    # ReportingExporter logs failures once; the library would log them every second.
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
    url = endpoint.rstrip("/")
    return (
        OTLPMetricExporter(endpoint=f"{url}/v1/metrics", timeout=COLLECTOR_TIMEOUT_S),
        SdkSpans(OTLPSpanExporter(endpoint=f"{url}/v1/traces", timeout=COLLECTOR_TIMEOUT_S), resource),
    )


class ReportingExporter(SpanExporter):
    """Counts the spans that ``exporter`` drops, logs the start and the end of a failure, and never raises.

    Once ``stopping`` is set, a failed batch is the last one, since each may take the exporter's whole time-out.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self.exporter = exporter
        self.done = 0
        self.dropped = 0
        self.stopping = threading.Event()
        self._counter = create_counter(metrics.get_meter(names.METER), names.SPANS_DROPPED)
        self._failing = False
        self._given_up = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export a batch and return whether that succeeded."""
        exported = not self._given_up and self._export(spans)
        if not exported:
            self.drop(len(spans))
            self._given_up = self.stopping.is_set()
        self.done += len(spans)
        return SpanExportResult.SUCCESS if exported else SpanExportResult.FAILURE

    def drop(self, count: int) -> None:
        """Count lost spans."""
        if count:
            self.dropped += count
            self._counter.add(count)

    def shutdown(self) -> None:
        """Shut the exporter down."""
        self.exporter.shutdown()

    def _export(self, spans: Sequence[ReadableSpan]) -> bool:
        try:
            exported = self.exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception:  # noqa: BLE001 - an exporter's error never fails a worker
            exported = False
        if exported is self._failing:
            self._failing = not exported
            report = log.info if exported else log.warning
            report("spans are exported again" if exported else "spans are dropped", by=type(self.exporter).__name__)
        return exported


class CountingSpanProcessor(BatchSpanProcessor):
    """Exports spans in batches from the SDK's thread; ``exporter.dropped`` counts the lost ones."""

    def __init__(self, exporter: SpanExporter, max_queue: int = MAX_QUEUE, every_s: float = EXPORT_INTERVAL_S) -> None:
        self.exporter = ReportingExporter(exporter)
        self.max_queue = max_queue
        self._accepted = 0
        super().__init__(self.exporter, max_queue, every_s * 1000, min(BATCH, max_queue))

    def on_end(self, span: ReadableSpan) -> None:
        """Queue an ended span, or drop it if the queue is full."""
        if self._accepted - self.exporter.done >= self.max_queue or self.exporter.stopping.is_set():
            self.exporter.drop(1)
            return
        self._accepted += 1
        super().on_end(span)

    def shutdown(self) -> None:
        """Export the queued spans and end the thread, within the SDK's bound of 30 s."""
        self.exporter.stopping.set()
        super().shutdown()
        self.exporter.drop(self._accepted - self.exporter.done)
