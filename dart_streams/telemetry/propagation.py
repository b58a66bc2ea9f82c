"""W3C trace context in Kafka record headers."""

import re
from collections.abc import Sequence

from dart_streams.telemetry.spans import ROOT, SpanRef, current

TRACEPARENT = "traceparent"
Header = tuple[str, bytes]

_parts = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?").fullmatch


def current_headers() -> list[Header]:
    """Return the current span as record headers; empty outside a span."""
    ref = current()
    return [(TRACEPARENT, b"00-%032x-%016x-%02x" % ref)] if ref.trace_id else []


def context_of(headers: Sequence[tuple[str, bytes | None]]) -> SpanRef:
    """Return the span in which a record was produced; ``ROOT`` without a valid ``traceparent`` header."""
    for name, value in headers:
        if name == TRACEPARENT and value is not None:
            return parsed(value)
    return ROOT


def parsed(value: bytes) -> SpanRef:
    """Return the span of a ``traceparent`` (https://www.w3.org/TR/trace-context); ``ROOT`` if it is not valid."""
    found = _parts(value)
    if found is None or found[1] == b"ff" or (found[1] == b"00" and found[5]):
        return ROOT
    trace_id, span_id = int(found[2], 16), int(found[3], 16)
    return SpanRef(trace_id, span_id, bool(int(found[4], 16) & 1)) if trace_id and span_id else ROOT
