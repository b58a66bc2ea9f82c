"""Start and stop telemetry in a process: logs to stderr, metrics and traces to the run's folder.

A full disk, a missing exporter or an unreachable collector costs telemetry, never the process.
"""

import importlib.util
import logging
import sys
from typing import Any, TextIO

import structlog
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter

from dart_streams.config import Config
from dart_streams.telemetry.lines import LineMetricExporter, LineSpanExporter
from dart_streams.telemetry.outbox import Outbox
from dart_streams.telemetry.repeats import Repeats
from dart_streams.telemetry.sampling import RatioAndFailures
from dart_streams.telemetry.spans import NamedIds

OTLP_SPANS = "opentelemetry.exporter.otlp.proto.http"
OTLP_TIMEOUT_S = 2
"""An unreachable collector delays a process's end by at most this."""


def start(config: Config, process: str) -> None:
    """Set up logs, metrics and traces of ``process`` (for instance ``env-0``); a second call changes nothing."""
    start_logs(process)
    if isinstance(metrics.get_meter_provider(), MeterProvider):
        return
    resource = Resource.create(
        {"service.name": f"dart_streams.{process.partition('-')[0]}", "service.instance.id": process}
    )
    folder = config.run.folder
    reader = PeriodicExportingMetricReader(
        LineMetricExporter(folder / "metrics" / f"{process}.jsonl", process),
        export_interval_millis=config.telemetry.metrics_every_s * 1000,
    )
    metrics.set_meter_provider(MeterProvider([reader], resource=resource, shutdown_on_exit=False))
    tracing = TracerProvider(
        RatioAndFailures(config.telemetry.sampling),
        resource=resource,
        shutdown_on_exit=False,
        id_generator=NamedIds(),
    )
    for exporter in span_exporters(config, process):
        tracing.add_span_processor(Outbox(exporter))
    trace.set_tracer_provider(tracing)


def stop() -> None:
    """Write what is still in memory; call it once, at the end of a process."""
    for provider in (metrics.get_meter_provider(), trace.get_tracer_provider()):
        if isinstance(provider, MeterProvider | TracerProvider):
            provider.shutdown()


def span_exporters(config: Config, process: str) -> list[SpanExporter]:
    """Return where sampled spans go: the run's folder, and a collector if one is configured."""
    exporters: list[SpanExporter] = []
    if config.telemetry.sampling > 0:
        exporters.append(LineSpanExporter(config.run.folder / "traces" / f"{process}.jsonl", process))
    if config.telemetry.otlp_endpoint:
        if importlib.util.find_spec("opentelemetry.exporter") and importlib.util.find_spec(OTLP_SPANS):
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            exporters.append(OTLPSpanExporter(endpoint=config.telemetry.otlp_endpoint, timeout=OTLP_TIMEOUT_S))
        else:
            structlog.get_logger().warning(
                "no OTLP export", why="opentelemetry-exporter-otlp-proto-http is not installed"
            )
    return exporters


def add_trace(_logger: Any, _method: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Add the trace that a log line belongs to; this is a processor of structlog's."""
    context = trace.get_current_span().get_span_context()
    return fields | {"trace": f"{context.trace_id:032x}"} if context.trace_flags.sampled else fields


def start_logs(process: str, to: TextIO | None = None) -> None:
    """Send logs to stderr (or ``to``): for people on a terminal, JSON lines elsewhere.

    Libraries are heard from warnings on, each with the same words once in a while.
    """
    stream = to or sys.stderr

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
        [structlog.dev.ConsoleRenderer()]
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
    handler.addFilter(Repeats())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
