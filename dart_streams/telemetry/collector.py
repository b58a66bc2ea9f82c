"""Spans and metrics to an OpenTelemetry collector, by OTLP over HTTP, for instance ``http://127.0.0.1:4318``."""

import logging

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

TIMEOUT_S = 2
"""An unreachable collector delays a process's end by at most this."""


def span_exporter(endpoint: str) -> OTLPSpanExporter:
    """Return what sends spans to the collector."""
    # An outbox says once that its exporter fails; the library would say so every second.
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
    return OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=TIMEOUT_S)


def metric_exporter(endpoint: str) -> OTLPMetricExporter:
    """Return what sends metrics to the collector; its histograms have the SDK's buckets, which are for milliseconds."""
    return OTLPMetricExporter(endpoint=f"{endpoint.rstrip('/')}/v1/metrics", timeout=TIMEOUT_S)
