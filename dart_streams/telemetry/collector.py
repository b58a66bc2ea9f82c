"""Spans and metrics to an OpenTelemetry collector, by OTLP over HTTP, for instance ``http://127.0.0.1:4318``."""

import logging

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

TIMEOUT_S = 2
"""An unreachable collector delays a process's end by at most this."""


def span_exporter(endpoint: str) -> OTLPSpanExporter:
    """Return the exporter of spans."""
    # The span processor logs once that its exporter fails; the library would log it every second.
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
    return OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=TIMEOUT_S)


def metric_exporter(endpoint: str) -> OTLPMetricExporter:
    """Return the exporter of metrics; its histograms have the SDK's buckets, which suit milliseconds."""
    return OTLPMetricExporter(endpoint=f"{endpoint.rstrip('/')}/v1/metrics", timeout=TIMEOUT_S)
