"""W3C trace context in Kafka headers: what a record was caused by travels with it."""

from collections.abc import Sequence

from opentelemetry import propagate
from opentelemetry.context import Context

Header = tuple[str, bytes]


def current_headers() -> list[Header]:
    """Return the current trace context as record headers; empty outside a span."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return [(key, value.encode()) for key, value in carrier.items()]


def context_of(headers: Sequence[Header]) -> Context:
    """Return the trace context a record carries. Kafka allows headers without a value: those are skipped."""
    return propagate.extract({key: value.decode(errors="replace") for key, value in headers if value is not None})
