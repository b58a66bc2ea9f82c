"""Finished spans on their way to an exporter: a bounded queue and one thread. Nothing that ends a span ever waits."""

import threading
import time
from collections import deque

from opentelemetry import metrics
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from dart_streams.telemetry import names

MOST = 8192
"""Spans that wait at most; more are dropped, the newest first."""
BATCH = 1024
EVERY_S = 1.0
LAST_S = 5.0
"""How long the end of a process waits for what is left."""


class Outbox(SpanProcessor):
    """Hands spans to ``exporter`` in batches, from a thread of its own; what it cannot is counted as dropped."""

    def __init__(self, exporter: SpanExporter, most: int = MOST, every_s: float = EVERY_S) -> None:
        self.exporter = exporter
        self.most = most
        self.every_s = every_s
        self.waiting: deque[ReadableSpan] = deque()
        self.dropped = 0
        self.counter = metrics.get_meter(names.METER).create_counter(names.SPANS_DROPPED)
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Do nothing: a span counts once it has ended."""

    def on_end(self, span: ReadableSpan) -> None:
        """Take a finished span, if there is room."""
        if not (span.context and span.context.trace_flags.sampled):
            return
        if self._stopping or len(self.waiting) >= self.most:
            self._drop(1)
            return
        self.waiting.append(span)
        if len(self.waiting) >= BATCH:
            self._wake.set()

    def shutdown(self) -> None:
        """Write what is left, within a bound, and end the thread."""
        self._stopping = True
        self._wake.set()
        self._thread.join(LAST_S)
        self._drop(len(self.waiting))
        self.exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Return when nothing waits any more, or the time is over; say which."""
        deadline = time.monotonic() + timeout_millis / 1000
        while self.waiting and time.monotonic() < deadline:
            self._wake.set()
            time.sleep(0.005)
        return not self.waiting

    def _run(self) -> None:
        while not (self._stopping and not self.waiting):
            self._wake.wait(0 if self._stopping else self.every_s)
            self._wake.clear()
            while self.waiting:
                batch = [self.waiting[index] for index in range(min(BATCH, len(self.waiting)))]
                if not self._exported(batch):
                    self._drop(len(batch))
                for _ in batch:
                    self.waiting.popleft()

    def _exported(self, batch: list[ReadableSpan]) -> bool:
        try:
            return self.exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception:  # noqa: BLE001 - telemetry never fails a worker, whatever its exporter raises
            return False

    def _drop(self, number: int) -> None:
        if number:
            self.dropped += number
            self.counter.add(number)
