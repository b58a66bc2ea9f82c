"""Finished spans on their way to an exporter: a bounded queue and one thread. Nothing that ends a span ever waits."""

import threading
import time
from collections import deque

import structlog
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

log = structlog.get_logger()


class SpanQueue(SpanProcessor):
    """Hands spans to ``exporter`` in batches, from a thread of its own; what it cannot is counted as dropped."""

    def __init__(self, exporter: SpanExporter, most: int = MOST, every_s: float = EVERY_S) -> None:
        self.exporter = exporter
        self.most = most
        self.every_s = every_s
        self.waiting: deque[ReadableSpan] = deque()
        self.dropped = 0
        self.counter = metrics.get_meter(names.METER).create_counter(names.SPANS_DROPPED)
        self._wake = threading.Event()
        self.stopping = threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Do nothing: a span counts once it has ended."""

    def on_end(self, span: ReadableSpan) -> None:
        """Take an ended span, if there is room."""
        waiting = len(self.waiting)
        if self.stopping.is_set() or waiting >= self.most:
            self._drop(1)
            return
        self.waiting.append(span)
        if waiting == BATCH:
            self._wake.set()

    def shutdown(self) -> None:
        """Write what is left, within a bound, and end the thread."""
        self.stopping.set()
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
        while not (self.stopping.is_set() and not self.waiting):
            self._wake.wait(0 if self.stopping.is_set() else self.every_s)
            self._wake.clear()
            while self.waiting:
                batch = [self.waiting[index] for index in range(min(BATCH, len(self.waiting)))]
                exported = self._exported(batch)
                if not exported:
                    self._drop(len(batch))
                for _ in batch:
                    self.waiting.popleft()
                if self.stopping.is_set() and not exported:
                    return  # a process that ends does not wait for one batch after another to fail

    def _exported(self, batch: list[ReadableSpan]) -> bool:
        try:
            exported = self.exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception:  # noqa: BLE001 - telemetry never fails a worker, whatever its exporter raises
            exported = False
        if exported is self._failing:
            self._failing = not exported
            said = log.info if exported else log.warning
            said("spans are taken again" if exported else "spans are dropped", by=type(self.exporter).__name__)
        return exported

    def _drop(self, number: int) -> None:
        if number:
            self.dropped += number
            self.counter.add(number)
