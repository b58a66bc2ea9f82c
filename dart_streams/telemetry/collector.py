"""Spans and metrics to an OpenTelemetry collector, by OTLP over HTTP."""

import logging
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags

from dart_streams.telemetry import names
from dart_streams.telemetry.spans import SpanRef, Traced

TIMEOUT_S = 2
"""An unreachable collector delays a process's end by at most this."""
SCOPE = InstrumentationScope(names.TRACER)


class CollectorSpanExporter:
    """Sends spans to the collector at ``endpoint``, for instance ``http://127.0.0.1:4318``."""

    def __init__(self, endpoint: str, resource: Resource) -> None:
        self.resource = resource
        # An outbox says once that its exporter fails; the library would say so every second.
        logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
        self.exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=TIMEOUT_S)

    def export(self, spans: Sequence[Traced]) -> bool:
        """Send ended spans and say whether the collector has them."""
        sent = self.exporter.export([readable(span, self.resource) for span in spans])
        return sent is SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Close the connection; an export under way is given up."""
        self.exporter.shutdown()


def metric_exporter(endpoint: str) -> OTLPMetricExporter:
    """Return what sends metrics to the collector; its histograms have the SDK's buckets, which are for milliseconds."""
    return OTLPMetricExporter(endpoint=f"{endpoint.rstrip('/')}/v1/metrics", timeout=TIMEOUT_S)


def readable(span: Traced, resource: Resource) -> ReadableSpan:
    """Return an ended span as the SDK has it."""
    parent = SpanRef(span.ref.trace_id, span.parent_id) if span.parent_id else None
    return ReadableSpan(
        span.name,
        context=context_of(span.ref),
        parent=context_of(parent) if parent else None,
        resource=resource,
        attributes=span.attributes,
        links=[Link(context_of(link)) for link in span.links],
        status=Status(StatusCode.ERROR, span.failure) if span.failure else Status(),
        start_time=span.started_ns,
        end_time=span.ended_ns,
        instrumentation_scope=SCOPE,
    )


def context_of(ref: SpanRef) -> SpanContext:
    """Return a span's context as the SDK has it; whatever is exported counts as sampled."""
    return SpanContext(ref.trace_id, ref.span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
