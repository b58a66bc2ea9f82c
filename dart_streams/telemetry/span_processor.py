"""The SDK's batching span processor, with the spans it loses counted in ``telemetry.spans.dropped``.

The SDK counts neither spans that find its queue full nor those of a failed export, so both are counted around it. Its
queue costs 8 % of the CPU time of a step's spans at sampling 1.0, and 2 % at 0.1, over a bare deque and thread of our
own (the spans of ``benchmarks/tracing_spans.py``, medians of 15 alternating runs of both): too little to keep those.
"""

import threading
from collections.abc import Sequence

import structlog
from opentelemetry import metrics
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from dart_streams.telemetry import names

MAX_QUEUE = 8192
"""Spans queued or being exported; further ones are dropped, and what ends a span never waits."""
BATCH = 1024
EVERY_S = 1.0

log = structlog.get_logger()


class ReportingExporter(SpanExporter):
    """Counts the spans that ``exporter`` does not take, logs when it begins and stops to fail, and never raises.

    Once ``stopping`` is set, a batch that fails is the last one: each may take the exporter's whole time-out.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self.exporter = exporter
        self.done = 0
        self.dropped = 0
        self.stopping = threading.Event()
        self._counter = metrics.get_meter(names.METER).create_counter(names.SPANS_DROPPED)
        self._failing = False
        self._given_up = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export a batch and return whether that worked."""
        exported = not self._given_up and self._export(spans)
        if not exported:
            self.drop(len(spans))
            self._given_up = self.stopping.is_set()
        self.done += len(spans)
        return SpanExportResult.SUCCESS if exported else SpanExportResult.FAILURE

    def drop(self, count: int) -> None:
        """Count ``count`` lost spans."""
        if count:
            self.dropped += count
            self._counter.add(count)

    def shutdown(self) -> None:
        """Shut the exporter down."""
        self.exporter.shutdown()

    def _export(self, spans: Sequence[ReadableSpan]) -> bool:
        try:
            exported = self.exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception:  # noqa: BLE001 - telemetry never fails a worker, whatever its exporter raises
            exported = False
        if exported is self._failing:
            self._failing = not exported
            report = log.info if exported else log.warning
            report("spans are exported again" if exported else "spans are dropped", by=type(self.exporter).__name__)
        return exported


class CountingSpanProcessor(BatchSpanProcessor):
    """Exports spans in batches from the SDK's thread; ``exporter.dropped`` counts those that were lost."""

    def __init__(self, exporter: SpanExporter, max_queue: int = MAX_QUEUE, every_s: float = EVERY_S) -> None:
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
        """Export what is queued and end the thread; the SDK waits for it at most 30 s."""
        self.exporter.stopping.set()
        super().shutdown()
        self.exporter.drop(self._accepted - self.exporter.done)
