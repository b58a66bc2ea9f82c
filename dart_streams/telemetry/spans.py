"""Spans that others can link to by name, and that are kept if they fail, whatever the sampling ratio.

What a trajectory, a group or an optimiser step is called, everyone knows; so the ids of its span are derived from its
name. A group can link its trajectories, and a step its groups, without anyone having told them of a span, also after
a restart. A request's spans are ordinary ones: their context travels in record headers.
"""

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from hashlib import blake2b
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import RandomIdGenerator
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags

from dart_streams.telemetry import names

ROOT = Context()
"""The parent of a span that begins a trace of its own."""

_ids: ContextVar[SpanContext | None] = ContextVar("ids of the next span", default=None)
_tracer = trace.get_tracer(names.TRACER)


def named(kind: str, *parts: object) -> SpanContext:
    """Return the context of the span of this name: the same anywhere."""
    digest = blake2b("\x1f".join([kind, *map(str, parts)]).encode(), digest_size=24).digest()
    return SpanContext(
        int.from_bytes(digest[:16]) or 1,
        int.from_bytes(digest[16:]) or 1,
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )


def trajectory(trajectory_id: str) -> SpanContext:
    """Return the context of a trajectory's span."""
    return named(names.SPAN_TRAJECTORY, trajectory_id)


def group(run: str, group_id: str) -> SpanContext:
    """Return the context of a curated group's span."""
    return named(names.SPAN_GROUP, run, group_id)


def train_step(run: str, version: int) -> SpanContext:
    """Return the context of the optimiser step that made a weight version."""
    return named(names.SPAN_TRAIN_STEP, run, version)


class NamedIds(RandomIdGenerator):
    """Random ids, but for a span that is begun with ids of its own."""

    def generate_trace_id(self) -> int:
        """Return the trace id of the span being begun."""
        ids = _ids.get()
        return super().generate_trace_id() if ids is None else ids.trace_id

    def generate_span_id(self) -> int:
        """Return the id of the span being begun."""
        ids = _ids.get()
        return super().generate_span_id() if ids is None else ids.span_id


class Traced:
    """A span under way. End it with :meth:`end`; one that has failed is written even if its trace was not sampled."""

    def __init__(
        self,
        name: str,
        *,
        ids: SpanContext | None = None,
        parent: Context | None = None,
        links: Iterable[SpanContext] = (),
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.parent = contexts.get_current() if parent is None else parent
        self.links = list(links)
        self.attributes = dict(attributes or {})
        self.started_ns = time.time_ns()
        self.failure = ""
        self.span = self._start(ids, self.attributes)
        self.context = trace.set_span_in_context(self.span, self.parent)

    def note(self, **attributes: Any) -> None:
        """Set attributes by their names in :mod:`dart_streams.telemetry.names`; those without a value are left out."""
        for name, value in attributes.items():
            if value is not None:
                self.attributes[getattr(names, name)] = value
                self.span.set_attribute(getattr(names, name), value)

    def fail(self, why: str) -> None:
        """Say that what the span stands for has failed."""
        self.failure = why or "failed"

    def end(self) -> None:
        """End the span."""
        if self.failure and not self.span.is_recording():
            self.span = self._start(self.span.get_span_context(), {**self.attributes, names.ATTR_KEPT: True})
        if self.failure:
            self.span.set_status(Status(StatusCode.ERROR, self.failure))
        self.span.end()

    @contextlib.contextmanager
    def current(self) -> Iterator["Traced"]:
        """Be the current span while the body lasts; what the body raises is its failure."""
        with attached(self.context):
            try:
                yield self
            except BaseException as error:
                self.fail(f"{type(error).__name__}: {error}")
                raise

    def _start(self, ids: SpanContext | None, attributes: Mapping[str, Any]) -> trace.Span:
        links = [Link(context) for context in self.links]
        token = _ids.set(ids if ids is not None and ids.is_valid else None)
        try:
            return _tracer.start_span(
                self.name, self.parent, attributes=attributes, links=links, start_time=self.started_ns
            )
        finally:
            _ids.reset(token)


@contextlib.contextmanager
def traced(name: str, **settings: Any) -> Iterator[Traced]:
    """Be within a span while the body lasts; what the body raises, or :meth:`Traced.fail`, is its failure."""
    made = Traced(name, **settings)
    try:
        with made.current():
            yield made
    finally:
        made.end()


@contextlib.contextmanager
def attached(context: Context) -> Iterator[None]:
    """Make a context the current one while the body lasts."""
    token = contexts.attach(context)
    try:
        yield
    finally:
        contexts.detach(token)
