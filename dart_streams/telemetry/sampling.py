"""Which spans are written: those of the traces that the ratio picks, and all that have failed."""

from collections.abc import Sequence
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import Decision, ParentBased, Sampler, SamplingResult, TraceIdRatioBased
from opentelemetry.trace import Link, SpanKind, TraceState
from opentelemetry.util.types import Attributes

from dart_streams.telemetry import names


class RatioAndFailures(Sampler):
    """Follows the parent, and for a trace's first span the ratio; a span written because it failed is always taken."""

    def __init__(self, ratio: float) -> None:
        self.rule = ParentBased(TraceIdRatioBased(ratio))

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
        **_: Any,
    ) -> SamplingResult:
        """Decide on a span that begins."""
        if attributes and names.ATTR_KEPT in attributes:
            return SamplingResult(Decision.RECORD_AND_SAMPLE, attributes, trace_state)
        return self.rule.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)

    def get_description(self) -> str:
        """Return what this does, in a word."""
        return f"RatioAndFailures({self.rule.get_description()})"
