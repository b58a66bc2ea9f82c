"""The spans of the agents in the traces of trajectories."""

from collections.abc import Iterable

from dart_streams.curation.journal import JournalInput
from dart_streams.telemetry import names
from dart_streams.telemetry.spans import ActiveSpan, context_of


def trace_decisions(prefix: str, agent: str, inputs: Iterable[JournalInput]) -> None:
    """Record a span of each input with a sampled context, from its time on the topic until its effects are published.

    Call it once they are. A decision has the context of its input, so the agents that read it join the same trace.
    """
    for read in inputs:
        if (parent := context_of(read.headers)).sampled:
            attributes = {
                names.ATTR_AGENT: agent,
                names.ATTR_MESSAGING: "kafka",
                names.ATTR_OPERATION: "process",
                names.ATTR_DESTINATION: prefix + read.topic,
                names.ATTR_PARTITION: str(read.partition),
                names.ATTR_OFFSET: read.offset,
            }
            span = ActiveSpan(names.SPAN_DECIDE, parent=parent, attributes=attributes)
            span.started_ns = read.at_ms * 1_000_000
            span.end()
