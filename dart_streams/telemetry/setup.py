"""Start and stop telemetry in a process: logs to stderr, metrics and traces to the run's folder.

A full disk, a missing exporter or an unreachable collector costs telemetry, never the process.
"""

import logging
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
from dart_streams.telemetry import spans
from dart_streams.telemetry.json_lines import LineMetricExporter, LineSpanExporter
from dart_streams.telemetry.rate_limit import RateLimitFilter
from dart_streams.telemetry.span_queue import SpanQueue


def start(config: Config, process: str) -> None:
    """Set up logs, metrics and traces of ``process`` (for instance ``env-0``); a second call changes nothing."""
    start_logs(process)
    if isinstance(metrics.get_meter_provider(), MeterProvider):
        return
    resource = Resource.create(
        {"service.name": f"dart_streams.{process.partition('-')[0]}", "service.instance.id": process}
    )
    readers = [
        PeriodicExportingMetricReader(exporter, export_interval_millis=config.telemetry.metrics_every_s * 1000)
        for exporter in metric_exporters(config, process)
    ]
    # Exemplars are not exported; looking for them costs a third of what a measurement costs.
    provider_of = MeterProvider(
        readers, resource=resource, exemplar_filter=AlwaysOffExemplarFilter(), shutdown_on_exit=False
    )
    metrics.set_meter_provider(provider_of)
    provider = spans.Provider(config.telemetry.sampling, resource)
    for exporter in span_exporters(config, process):
        provider.add_span_processor(SpanQueue(exporter))
    trace.set_tracer_provider(provider)
    sample(config.telemetry.sampling)


def sample(ratio: float | None) -> None:
    """Write this share of traces from now on, and all spans that fail; None: make no spans at all."""
    provider = trace.get_tracer_provider()
    if ratio is None or not isinstance(provider, spans.Provider):
        spans.disable()
    else:
        spans.enable(ratio, provider)


def flush() -> None:
    """Return when the spans that have ended are written."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, TracerProvider):
        provider.force_flush()


def stop() -> None:
    """Write what is still in memory; call it once, at the end of a process."""
    spans.disable()
    for provider in (trace.get_tracer_provider(), metrics.get_meter_provider()):
        if isinstance(provider, MeterProvider | TracerProvider):
            provider.shutdown()


def metric_exporters(config: Config, process: str) -> list[MetricExporter]:
    """Return where metrics go: the run's folder, and a collector if one is configured."""
    exporters: list[MetricExporter] = [LineMetricExporter(config.run.folder / "metrics" / f"{process}.jsonl", process)]
    if endpoint := config.telemetry.otlp_endpoint:
        from dart_streams.telemetry import collector

        exporters.append(collector.metric_exporter(endpoint))
    return exporters


def span_exporters(config: Config, process: str) -> list[SpanExporter]:
    """Return where spans go: the run's folder, and a collector if one is configured."""
    exporters: list[SpanExporter] = [LineSpanExporter(config.run.folder / "traces" / f"{process}.jsonl", process)]
    if endpoint := config.telemetry.otlp_endpoint:
        from dart_streams.telemetry import collector

        exporters.append(collector.span_exporter(endpoint))
    return exporters


def add_trace(_logger: Any, _method: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Add the trace that a log line belongs to, also one of which only failures are written; for structlog."""
    ref = spans.current()
    return fields | {"trace": f"{ref.trace_id:032x}"} if ref.trace_id else fields


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
        # Its own tracebacks show local variables, a password too.
        [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
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
