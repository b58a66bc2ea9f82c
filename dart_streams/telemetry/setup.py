"""Starts and stops telemetry in a process: logs to stderr, metrics and traces to the run's folder.

A full disk or an unreachable collector loses telemetry and never fails the process.
"""

import logging
import os
import sys
from typing import Any, TextIO

import structlog
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter

from dart_streams.config import Config
from dart_streams.telemetry import environment, spans, terminal_lines
from dart_streams.telemetry.exporters import (
    CountingSpanProcessor,
    LineMetricExporter,
    LineSpanExporter,
    collector_exporters,
)
from dart_streams.telemetry.log_stream import LogStream


def start(config: Config, process: str) -> None:
    """Set up logs, metrics and traces of ``process`` (for instance ``env-0``); a second call changes nothing."""
    start_logs(process)
    if isinstance(metrics.get_meter_provider(), MeterProvider):
        return
    if reason := environment.disabled_reason(os.environ):
        structlog.get_logger().warning("nothing is measured", reason=reason)
    every_ms = environment.metrics_every_ms(os.environ)
    resource = Resource.create(
        {"service.name": f"dart_streams.{process.partition('-')[0]}", "service.instance.id": process}
    )
    pairs = build_exporters(config, process)
    readers = [PeriodicExportingMetricReader(exporter, every_ms) for exporter, _ in pairs]
    # Exemplars are not exported, and collecting them costs a third of a measurement.
    metrics.set_meter_provider(
        MeterProvider(readers, resource=resource, exemplar_filter=AlwaysOffExemplarFilter(), shutdown_on_exit=False)
    )
    provider = spans.Provider(config.telemetry.sampling, resource)
    for _, exporter in pairs:
        provider.add_span_processor(CountingSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    sample(config.telemetry.sampling)


def sample(ratio: float | None) -> None:
    """Write this share of traces from now on, and all spans with an error; None: make no spans at all."""
    provider = trace.get_tracer_provider()
    if ratio is None or not isinstance(provider, spans.Provider):
        spans.disable()
    else:
        spans.enable(ratio, provider)


def flush() -> None:
    """Return when all ended spans are exported."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, TracerProvider):
        provider.force_flush()


def stop() -> None:
    """Export what is left; call it once, at the end of a process."""
    spans.disable()
    for provider in (trace.get_tracer_provider(), metrics.get_meter_provider()):
        if isinstance(provider, MeterProvider | TracerProvider):
            provider.shutdown()


def build_exporters(config: Config, process: str) -> list[tuple[MetricExporter, SpanExporter]]:
    """Return the exporters to the run's folder, and to a collector if one is configured."""
    folder, file = config.run.folder, f"{process}.jsonl"
    lines = LineMetricExporter(folder / "metrics" / file, process), LineSpanExporter(folder / "traces" / file, process)
    endpoint = config.telemetry.otlp_endpoint
    return [lines, collector_exporters(endpoint)] if endpoint else [lines]


def add_trace(_logger: Any, _method: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Add the current trace id, sampled or not; a processor of structlog."""
    ref = spans.current_span()
    return fields | {"trace": f"{ref.trace_id:032x}"} if ref.trace_id else fields


def start_logs(process: str, to: TextIO | None = None) -> None:
    """Send logs to stderr (or ``to``): readable on a terminal, JSON lines elsewhere.

    Libraries log from level WARNING on, rate-limited. Lines that cannot be written are dropped.
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
        terminal_lines.build_renderers()
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
    """Passes each distinct message of a logger at most once in ``every_s`` seconds, and at most ``most`` of them."""

    def __init__(self, every_s: float = 30.0, most: int = 100) -> None:
        super().__init__()
        self.every_s = every_s
        self.most = most
        self.passed: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether this message was not passed within ``every_s``."""
        known = (record.name, record.getMessage())
        if record.created - self.passed.get(known, -self.every_s) < self.every_s:
            return False
        self.passed = {key: at for key, at in self.passed.items() if record.created - at < self.every_s}
        if sum(name == record.name for name, _ in self.passed) >= self.most:
            return False
        self.passed[known] = record.created
        return True
