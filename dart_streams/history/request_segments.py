"""Where the time of a step request went, from the spans of its trace. Pure."""

import heapq
from collections.abc import Iterable, Sequence

import msgspec

from dart_streams.history.span_index import RecordedSpan, Timeline
from dart_streams.telemetry import names

PARTS = (
    ("queue", names.ATTR_QUEUE_MS),
    ("screenshots", names.ATTR_FETCH_MS),
    ("prefill", names.ATTR_PREFILL_MS),
    ("decode", names.ATTR_DECODE_MS),
)
"""The attributes of a rollout worker's span."""


class RequestSegment(msgspec.Struct, frozen=True):
    """A part of a request's latency."""

    name: str
    ms: float


class SlowRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request and where its time went; ``most`` names the segment that cost most."""

    request_id: str
    total_ms: float
    most: str
    most_ms: float
    segments: dict[str, float]


def segments(trace: Sequence[RecordedSpan]) -> list[RequestSegment]:
    """Return the parts of a step's latency in order; those whose spans are missing are left out."""
    by_name: dict[str, RecordedSpan] = {}
    for span in sorted(trace, key=lambda span: span.start_ms):
        by_name[span.name] = span
    request, generate = by_name.get(names.SPAN_REQUEST), by_name.get(names.SPAN_GENERATE)
    found: list[tuple[str, float]] = []
    if request and generate:
        found += [("to the rollout worker", generate.start_ms - request.start_ms), *inside(generate)]
        found.append(("reply to the env worker", request.end_ms - generate.end_ms))
    elif request:
        found.append(("request (no worker's span)", request.ms))
    execute, record = by_name.get(names.SPAN_EXECUTE), by_name.get(names.SPAN_RECORD)
    before = execute or request
    if execute:
        found.append(("execute", execute.ms))
    if record:
        if before:
            found.append(("observation to the recorder", record.start_ms - before.end_ms))
        found.append(("write to the store", record.ms))
    return [RequestSegment(name, round(max(0.0, ms), 3)) for name, ms in found]


def inside(generate: RecordedSpan) -> list[tuple[str, float]]:
    """Split a rollout worker's span by its attributes, and the rest."""
    parts = [(name, float(generate.attributes.get(attribute, 0.0))) for name, attribute in PARTS]
    # The queue may have begun before the span did, on the topic: only what lies in the span is its part.
    return [*parts, ("publish the reply", generate.ms - sum(ms for _, ms in parts))]


def slowest(timeline: Timeline, most: int) -> list[SlowRequest]:
    """Return the step requests that took longest."""
    return heapq.nlargest(most, requests(timeline), key=lambda request: request.total_ms)


def requests(timeline: Timeline) -> Iterable[SlowRequest]:
    """Yield every step request with its times."""
    for span in timeline.steps.values():
        trace = timeline.traces[span.trace]
        sent, parts = [other for other in trace if other.name == names.SPAN_REQUEST], segments(trace)
        if sent and parts:
            worst = max(parts, key=lambda part: part.ms)
            yield SlowRequest(
                request_id=sent[-1].attributes.get(names.ATTR_REQUEST, ""),
                total_ms=round(max(other.end_ms for other in trace) - span.start_ms, 3),
                most=worst.name,
                most_ms=worst.ms,
                segments={part.name: part.ms for part in parts},
            )
