"""Start and stop of telemetry in a process: logs to stderr, metrics and traces to the run's folder.

A full disk or an unreachable collector loses telemetry and never fails the process.
"""

import logging
import os
import socket
import sys
from typing import Any, TextIO

import structlog
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from dart_streams.config import Config
from dart_streams.telemetry import environment, log_lines, names, spans
from dart_streams.telemetry.exporters import (
    CountingSpanProcessor,
    LineMetricExporter,
    LineSpanExporter,
    collector_exporters,
)
from dart_streams.telemetry.log_stream import LogStream
from dart_streams.version import VERSION

REPEAT_S = 30.0
MAX_MESSAGES = 100


def start(config: Config, process: str) -> None:
    """Set up logs, metrics and traces of ``process`` (for instance ``env-0``); a second call changes nothing."""
    start_logs(process)
    if isinstance(metrics.get_meter_provider(), MeterProvider):
        return
    if reason := environment.disabled_reason(os.environ):
        structlog.get_logger().warning("nothing is measured", reason=reason)
    interval_ms = environment.metrics_interval_ms(os.environ)
    resource = describe_process(process, config.bus.run or config.run.id)
    folder, file = config.run.folder, f"{process}.jsonl"
    lines = LineMetricExporter(folder / "metrics" / file, process), LineSpanExporter(folder / "traces" / file, process)
    endpoint = config.telemetry.otlp_endpoint
    pairs = [lines, collector_exporters(endpoint, resource)] if endpoint else [lines]
    readers = [PeriodicExportingMetricReader(exporter, interval_ms) for exporter, _ in pairs]
    # Exemplars are never exported, and collecting them takes a third of the time of a measurement.
    metrics.set_meter_provider(
        MeterProvider(readers, resource=resource, exemplar_filter=AlwaysOffExemplarFilter(), shutdown_on_exit=False)
    )
    provider = spans.Provider(config.telemetry.sampling, resource)
    for _, exporter in pairs:
        provider.add_span_processor(CountingSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    sample(config.telemetry.sampling)


def describe_process(process: str, run: str) -> Resource:
    """Return the resource of a process's telemetry, by OpenTelemetry's conventions; ``run`` is this project's own."""
    return Resource.create(
        {
            "service.name": f"dart_streams.{process.partition('-')[0]}",
            "service.instance.id": process,
            "service.version": VERSION,
            "host.name": socket.gethostname(),
            names.ATTR_RUN: run,
        }
    )


def sample(ratio: float | None) -> None:
    """Set the share of traces that is written; spans with an error always are. None disables spans."""
    provider = trace.get_tracer_provider()
    if ratio is None or not isinstance(provider, spans.Provider):
        spans.disable()
    else:
        spans.enable(ratio, provider)


def stop() -> None:
    """Export the remaining telemetry; call it once, at the end of a process."""
    spans.disable()
    for provider in (trace.get_tracer_provider(), metrics.get_meter_provider()):
        if isinstance(provider, MeterProvider | TracerProvider):
            provider.shutdown()


def add_trace(_logger: Any, _method: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Add the id of the current trace, sampled or not, as a processor of structlog."""
    ref = spans.current_span()
    return fields | {"trace": f"{ref.trace_id:032x}"} if ref.trace_id else fields


def start_logs(process: str, to: TextIO | None = None) -> None:
    """Send logs to stderr (or ``to``), readable on a terminal and as JSON lines elsewhere.

    Libraries log from level WARNING, rate-limited. Lines that cannot be written are dropped.
    """
    stream: Any = LogStream(to or sys.stderr)

    def add_process(_logger: Any, _method: str, fields: dict[str, Any]) -> dict[str, Any]:
        return fields | {"process": process}

    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        add_process,
        add_trace,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[Any] = (
        log_lines.build_renderers()
        if stream.isatty()
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last], foreign_pre_chain=shared
        )
    )
    handler.addFilter(RateLimitFilter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)


class RateLimitFilter(logging.Filter):
    """Passes each message of a logger once in :data:`REPEAT_S`, and at most :data:`MAX_MESSAGES` distinct ones."""

    def __init__(self) -> None:
        super().__init__()
        self.passed: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the message passes."""
        key = (record.name, record.getMessage())
        self.passed = {key: at for key, at in self.passed.items() if record.created - at < REPEAT_S}
        if key in self.passed or sum(name == record.name for name, _ in self.passed) >= MAX_MESSAGES:
            return False
        self.passed[key] = record.created
        return True
