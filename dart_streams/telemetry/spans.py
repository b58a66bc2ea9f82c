"""Spans whose ids can be derived from names; a span is written if its trace is sampled or if it failed.

The ids of the spans of a trajectory, a group and an optimizer step derive from its id. A group links its trajectories,
and a step its groups, without an exchange of span contexts and after restarts. The context of a request travels in
record headers.

A trajectory is one trace: its steps with their requests, and what the recorder, the agents and the trainer make of it.
A step has six spans. So an active span is only its ids, set as OpenTelemetry's current context for the spans of
libraries and engines, and is written as it is. Only a collector needs it as a span of the SDK.
"""

import random
import re
import time
from collections.abc import Iterable, Sequence
from contextvars import Token
from hashlib import blake2b
from typing import Any, NamedTuple, Self

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SynchronousMultiSpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags

from dart_streams.telemetry import names

LOW = (1 << 64) - 1
"""The part of a trace id that is compared with the sampling ratio, as in OpenTelemetry."""
MAX_TRAJECTORIES_PER_S = 100.0
"""Rate of trajectories up to which a process samples them; it samples none of those beyond."""
TRACEPARENT = "traceparent"
OTHER_ERROR = "_OTHER"
"""The class of an error without a name of its own, by OpenTelemetry's conventions."""
Header = tuple[str, bytes]

_parts = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?").fullmatch


class SpanRef(NamedTuple):
    """A W3C trace context: the ids of a span; ``sampled`` traces are written."""

    trace_id: int
    span_id: int
    sampled: bool = True

    def as_context(self) -> SpanContext:
        """Return the ids as OpenTelemetry's ``SpanContext``."""
        flags = TraceFlags(TraceFlags.SAMPLED if self.sampled else TraceFlags.DEFAULT)
        return SpanContext(self.trace_id, self.span_id, is_remote=True, trace_flags=flags)


ROOT = SpanRef(0, 0, False)
"""The parent of a span that begins a new trace."""


def current_span() -> SpanRef:
    """Return the current span, or :data:`ROOT` without one."""
    span = contexts.get_value(SPAN_KEY)
    if type(span) is CurrentSpan:
        return span.ref
    context = trace.get_current_span().get_span_context()
    return SpanRef(context.trace_id, context.span_id, context.trace_flags.sampled) if context.is_valid else ROOT


def derive_span(kind: str, *parts: object) -> SpanRef:
    """Return the span whose ids are a hash of names, equal in every process."""
    digest = blake2b("\x1f".join([kind, *map(str, parts)]).encode(), digest_size=24).digest()
    return SpanRef(int.from_bytes(digest[:16]) or 1, int.from_bytes(digest[16:]) or 1)


def trajectory_span(trajectory_id: str) -> SpanRef:
    """Return the span of a trajectory."""
    return derive_span(names.SPAN_TRAJECTORY, trajectory_id)


def group_span(run: str, group_id: str) -> SpanRef:
    """Return the span of a curated group."""
    return derive_span(names.SPAN_GROUP, run, group_id)


def train_step_span(run: str, version: int) -> SpanRef:
    """Return the span of the optimizer step that made a weight version."""
    return derive_span(names.SPAN_TRAIN_STEP, run, version)


class ActiveSpan:
    """A started span. As a context manager it is the current span, and an exception of the body is its error.

    Otherwise end it with :meth:`end`. It is written if its trace is sampled or if it has an error. A trace that begins
    with a span ``by_rate`` is not sampled beyond :data:`MAX_TRAJECTORIES_PER_S`.
    """

    __slots__ = ("attributes", "ended_ns", "failure", "links", "name", "parent_id", "ref", "started_ns", "token")
    context = SpanRef(1, 1).as_context()
    """What the SDK's queue asks whether a span that is written is sampled."""

    def __init__(
        self,
        name: str,
        *,
        ids: SpanRef | None = None,
        parent: SpanRef | None = None,
        links: Sequence[SpanRef] = (),
        attributes: dict[str, Any] | None = None,
        by_rate: bool = False,
    ) -> None:
        self.name = name
        self.links = links
        self.attributes = {} if attributes is None else attributes
        self.failure = ""
        self.started_ns = self.ended_ns = 0
        self.parent_id = 0
        self.ref = ROOT
        if Tracing.provider is not None:
            trace_id, self.parent_id, sampled = current_span() if parent is None else parent
            span_id = random.getrandbits(64) or 1 if ids is None else ids.span_id
            if not trace_id:
                trace_id = random.getrandbits(128) or 1 if ids is None else ids.trace_id
                sampled = trace_id & LOW < Tracing.bound and (not by_rate or Tracing.rate.take(time.monotonic()))
            self.ref = SpanRef(trace_id, span_id, sampled)
            self.started_ns = time.time_ns()

    def set_attributes(self, **attributes: Any) -> None:
        """Set attributes by their names in :mod:`dart_streams.telemetry.names`, except None."""
        for name, value in attributes.items():
            if value is not None:
                self.attributes[getattr(names, name)] = value

    def set_error(self, reason: str, kind: str = OTHER_ERROR) -> None:
        """Give the span the status of an error; ``kind`` is its class, one of few."""
        self.failure = reason or "failed"
        self.attributes = {**self.attributes, names.ATTR_ERROR: kind}

    def end(self) -> None:
        """End the span."""
        provider, ref = Tracing.provider, self.ref
        if provider is None or not (ref.sampled or (self.failure and ref.trace_id)):
            return
        if not ref.sampled:
            self.attributes[names.ATTR_KEPT] = True
        self.ended_ns = time.time_ns()
        span: Any = self
        provider.processors.on_end(span)

    def to_sdk(self, resource: Resource) -> ReadableSpan:
        """Return the ended span as a span of the SDK, for exporters of others."""
        trace_id = self.ref.trace_id
        return ReadableSpan(
            self.name,
            context=SpanRef(trace_id, self.ref.span_id).as_context(),
            parent=SpanRef(trace_id, self.parent_id).as_context() if self.parent_id else None,
            resource=resource,
            attributes=self.attributes,
            links=[Link(link.as_context()) for link in self.links],
            status=Status(StatusCode.ERROR, self.failure) if self.failure else Status(),
            start_time=self.started_ns,
            end_time=self.ended_ns,
            instrumentation_scope=SCOPE,
        )

    def use(self) -> "UseSpan":
        """Return a context manager that makes this span current; an exception is its error, and it does not end."""
        return UseSpan(self.ref, self)

    def __enter__(self) -> Self:
        self.token = contexts.attach(otel_context(self.ref))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        detach(self.token)
        if kind is not None:
            self.set_error(f"{kind.__name__}: {error}", kind.__name__)
        self.end()


class CurrentSpan(NonRecordingSpan):
    """A current span as OpenTelemetry sees it; most are never looked at, so its context is made when it is."""

    def __init__(self, ref: SpanRef) -> None:
        self.ref = ref

    def get_span_context(self) -> SpanContext:
        """Return the ids as OpenTelemetry's."""
        return self.ref.as_context()

    def __repr__(self) -> str:
        return f"CurrentSpan({self.ref!r})"


SPAN_KEY = next(iter(trace.set_span_in_context(NonRecordingSpan(ROOT.as_context()), Context())))
"""Where OpenTelemetry's context has the current span."""


def otel_context(ref: SpanRef) -> Context:
    """Return OpenTelemetry's context of a current span."""
    return Context({SPAN_KEY: CurrentSpan(ref)})


def detach(token: Token[Context]) -> None:
    """Restore the current span from before the token."""
    try:  # noqa: SIM105 - suppress() costs as much as the rest of a span
        token.var.reset(token)  # OpenTelemetry's `detach` would log the ignored error
    except ValueError:  # the garbage collector closed a coroutine in another context
        pass


class UseSpan:
    """A context manager with ``ref`` as the current span; an exception of the body is the error of ``span``."""

    __slots__ = ("ref", "span", "token")

    def __init__(self, ref: SpanRef, span: ActiveSpan | None = None) -> None:
        self.ref = ref
        self.span = span

    def __enter__(self) -> None:
        self.token = contexts.attach(otel_context(self.ref))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        detach(self.token)
        if kind is not None and self.span is not None:
            self.span.set_error(f"{kind.__name__}: {error}", kind.__name__)


SCOPE = InstrumentationScope(names.TRACER)


class Provider(TracerProvider):
    """The SDK's provider; its processors also get our spans, and spans of libraries are sampled like their parent."""

    def __init__(self, ratio: float, resource: Resource | None = None) -> None:
        self.processors = SynchronousMultiSpanProcessor()
        super().__init__(
            ParentBased(TraceIdRatioBased(ratio)),
            resource=resource,
            shutdown_on_exit=False,
            active_span_processor=self.processors,
        )


class TraceRate:
    """Admits ``per_s`` a second, and as many at once after a second without any."""

    def __init__(self, per_s: float) -> None:
        self.per_s = self.left = per_s
        self.at_s = 0.0

    def take(self, now_s: float) -> bool:
        """Return whether one more is admitted at this monotonic time."""
        self.left = min(self.per_s, self.left + (now_s - self.at_s) * self.per_s)
        self.at_s = now_s
        admitted = self.left >= 1.0
        self.left -= admitted
        return admitted


class Tracing:
    """State of the process: the provider of written spans, None if disabled, and what bounds the sampled traces."""

    provider: Provider | None = None
    bound = 0
    """Trace ids below it are sampled."""
    rate = TraceRate(MAX_TRAJECTORIES_PER_S)


def enable(ratio: float, provider: Provider) -> None:
    """Give ``provider`` the ended spans of this share of traces, and all spans with an error."""
    if not 0 <= ratio <= 1:
        raise ValueError(f"the sampling ratio is {ratio:g}: it must be between 0 and 1")
    Tracing.bound = round(ratio * (LOW + 1))
    Tracing.provider = provider


def disable() -> None:
    """Create no further spans; records carry no trace context."""
    Tracing.provider = None


def trace_training(step: ActiveSpan, trajectory_ids: Iterable[str]) -> None:
    """Record in the trace of each trained trajectory the time of the optimizer step, which just ends, and its link."""
    for trajectory_id in trajectory_ids:
        own = trajectory_span(trajectory_id)
        own = own._replace(sampled=own.trace_id & LOW < Tracing.bound)  # as the process decides that begins the trace
        attributes = {**step.attributes, names.ATTR_TRAJECTORY: trajectory_id}
        span = ActiveSpan(names.SPAN_TRAIN, parent=own, links=[step.ref], attributes=attributes)
        span.started_ns = step.started_ns
        span.end()


def send_attributes(topic: str) -> dict[str, Any]:
    """Return the attributes of a span that sends a record to a topic, given with its prefix."""
    return {names.ATTR_MESSAGING: "kafka", names.ATTR_OPERATION: "send", names.ATTR_DESTINATION: topic}


def process_attributes(record: Any, group: str) -> dict[str, Any]:
    """Return the attributes of a span that processes a consumed record; ``group`` has its prefix too."""
    return {
        names.ATTR_MESSAGING: "kafka",
        names.ATTR_OPERATION: "process",
        names.ATTR_DESTINATION: record.topic,
        names.ATTR_PARTITION: str(record.partition),
        names.ATTR_OFFSET: record.offset,
        names.ATTR_CONSUMER_GROUP: group,
    }


def current_headers() -> list[Header]:
    """Return the current span as record headers; empty outside a span."""
    ref = current_span()
    return [(TRACEPARENT, b"00-%032x-%016x-%02x" % ref)] if ref.trace_id else []


def context_of(headers: Sequence[tuple[str, bytes | None]]) -> SpanRef:
    """Return the span in which a record was produced; ``ROOT`` without a valid ``traceparent`` header.

    Format: https://www.w3.org/TR/trace-context
    """
    match = _parts(next((value for name, value in headers if name == TRACEPARENT and value is not None), b""))
    if match is None or match[1] == b"ff" or (match[1] == b"00" and match[5]):
        return ROOT
    trace_id, span_id = int(match[2], 16), int(match[3], 16)
    return SpanRef(trace_id, span_id, bool(int(match[4], 16) & 1)) if trace_id and span_id else ROOT
