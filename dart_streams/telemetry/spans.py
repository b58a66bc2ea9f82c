"""Spans that others can link to by name, and that are kept if they fail, whatever the sampling ratio.

What a trajectory, a group or an optimiser step is called, everyone knows; so the ids of its span are derived from its
name. A group can link its trajectories, and a step its groups, without anyone having told them of a span, also after
a restart. A request's spans are ordinary ones: their context travels in record headers.

A step has five spans, and most are not sampled. So a span under way is only its ids, which are OpenTelemetry's current
context: spans that a library or an engine makes of its own join it. When it ends, it is known whether it is written,
for a failure is at any ratio; if so, it becomes a span of the SDK's, and goes the way of all spans.
"""

import functools
import random
import time
from collections.abc import Sequence
from contextvars import Token
from hashlib import blake2b
from types import TracebackType
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
"""The part of a trace id that the sampling ratio is compared with, as in OpenTelemetry."""


class SpanRef(NamedTuple):
    """Which span: what W3C calls a trace context. ``sampled`` says whether its trace is written."""

    trace_id: int
    span_id: int
    sampled: bool = True

    def as_context(self) -> SpanContext:
        """Return what OpenTelemetry calls the span's context."""
        flags = TraceFlags(TraceFlags.SAMPLED if self.sampled else TraceFlags.DEFAULT)
        return SpanContext(self.trace_id, self.span_id, is_remote=True, trace_flags=flags)


ROOT = SpanRef(0, 0, False)
"""The parent of a span that begins a trace of its own."""


def current() -> SpanRef:
    """Return the span that the running code is in, :data:`ROOT` outside of any."""
    context = trace.get_current_span().get_span_context()
    return SpanRef(context.trace_id, context.span_id, context.trace_flags.sampled) if context.is_valid else ROOT


def named(kind: str, *parts: object) -> SpanRef:
    """Return the span of this name: the same anywhere."""
    digest = blake2b("\x1f".join([kind, *map(str, parts)]).encode(), digest_size=24).digest()
    return SpanRef(int.from_bytes(digest[:16]) or 1, int.from_bytes(digest[16:]) or 1)


def trajectory(trajectory_id: str) -> SpanRef:
    """Return a trajectory's span."""
    return named(names.SPAN_TRAJECTORY, trajectory_id)


def group(run: str, group_id: str) -> SpanRef:
    """Return a curated group's span."""
    return named(names.SPAN_GROUP, run, group_id)


def train_step(run: str, version: int) -> SpanRef:
    """Return the span of the optimiser step that made a weight version."""
    return named(names.SPAN_TRAIN_STEP, run, version)


class ActiveSpan:
    """A span under way; as a context it is the current one, and what the body raises is its failure.

    Without a context, end it with :meth:`end`. It is written if its trace was picked, or if it has failed.
    """

    __slots__ = (
        "attributes",
        "failure",
        "links",
        "name",
        "parent_id",
        "ref",
        "started_ns",
        "token",
    )

    def __init__(
        self,
        name: str,
        *,
        ids: SpanRef | None = None,
        parent: SpanRef | None = None,
        links: Sequence[SpanRef] = (),
        attributes: dict[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.links = links
        self.attributes = {} if attributes is None else attributes
        self.failure = ""
        self.started_ns = 0
        self.parent_id = 0
        self.ref = ROOT
        if (tracing := _tracing.now) is not None:
            trace_id, self.parent_id, sampled = current() if parent is None else parent
            span_id = random.getrandbits(64) or 1 if ids is None else ids.span_id
            if not trace_id:
                trace_id = random.getrandbits(128) or 1 if ids is None else ids.trace_id
                sampled = trace_id & LOW < tracing.bound
            self.ref = SpanRef(trace_id, span_id, sampled)
            self.started_ns = time.time_ns()

    def note(self, **attributes: Any) -> None:
        """Set attributes by their names in :mod:`dart_streams.telemetry.names`; those without a value are left out."""
        for name, value in attributes.items():
            if value is not None:
                self.attributes[getattr(names, name)] = value

    def fail(self, why: str) -> None:
        """Say that what the span stands for has failed."""
        self.failure = why or "failed"

    def end(self) -> None:
        """End the span."""
        tracing, ref = _tracing.now, self.ref
        if tracing is None or not (ref.sampled or (self.failure and ref.trace_id)):
            return
        if not ref.sampled:
            self.attributes[names.ATTR_KEPT] = True
        tracing.provider.processors.on_end(self._written(tracing.provider.resource))

    def _written(self, resource: Resource) -> ReadableSpan:
        """Return the span, which ends now, as the SDK has it."""
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
            end_time=time.time_ns(),
            instrumentation_scope=SCOPE,
        )

    def current(self) -> "UseSpan":
        """Return a context that is within the span, notes its failure, and does not end it."""
        return UseSpan(self.ref, self)

    def __enter__(self) -> Self:
        self.token = enter(self.ref)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave(self.token)
        if kind is not None:
            self.fail(f"{kind.__name__}: {error}")
        self.end()


def enter(ref: SpanRef) -> Token[Context]:
    """Make a span the current one; return what :func:`leave` wants."""
    return contexts.attach(within(ref))


@functools.lru_cache(maxsize=4096)
def within(ref: SpanRef) -> Context:
    """Return OpenTelemetry's context of being in a span: a step is entered and left several times."""
    return trace.set_span_in_context(NonRecordingSpan(ref.as_context()), Context())


def leave(token: Token[Context]) -> None:
    """Be where one was before :func:`enter`."""
    try:  # noqa: SIM105 - on the way of every span: suppress() would cost as much as the rest of it
        # The library's own `detach` would log what is passed over here.
        token.var.reset(token)
    except ValueError:  # a coroutine that is closed by the garbage collector ends in another context than it began in
        pass


class UseSpan:
    """A context in which a span is the current one; what the body raises is the failure of ``traced``, if given."""

    __slots__ = ("ref", "token", "traced")

    def __init__(self, ref: SpanRef, traced: ActiveSpan | None = None) -> None:
        self.ref = ref
        self.traced = traced

    def __enter__(self) -> None:
        self.token = enter(self.ref)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave(self.token)
        if kind is not None and self.traced is not None:
            self.traced.fail(f"{kind.__name__}: {error}")


SCOPE = InstrumentationScope(names.TRACER)


class Provider(TracerProvider):
    """The SDK's, whose processors get our spans too; spans that others make follow their parent, or else ``ratio``."""

    def __init__(self, ratio: float, resource: Resource | None = None) -> None:
        self.processors = SynchronousMultiSpanProcessor()
        super().__init__(
            ParentBased(TraceIdRatioBased(ratio)),
            resource=resource,
            shutdown_on_exit=False,
            active_span_processor=self.processors,
        )


class Tracing(NamedTuple):
    """How a process traces: where its written spans go, and the bound that the ratio sets to a trace's id."""

    provider: Provider
    bound: int


class TracingState:
    """What :func:`begin` and :func:`end` set."""

    now: Tracing | None = None


_tracing = TracingState()


def begin(ratio: float, provider: Provider) -> None:
    """Trace from now on: hand ``provider`` the ended spans of this share of traces, and all that have failed."""
    if not 0 <= ratio <= 1:
        raise ValueError(f"a sampling ratio of {ratio:g} is none: it is between 0 and 1")
    _tracing.now = Tracing(provider, round(ratio * (LOW + 1)))


def end() -> None:
    """Trace no more: spans are nothing, and records carry no context."""
    _tracing.now = None
