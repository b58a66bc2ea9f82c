"""The spans and record headers of episodes, alone: those of all processes, with as many attributes as theirs."""

import gc
import time
from typing import Any, NamedTuple

from dart_streams.curation.journal import JournalInput
from dart_streams.telemetry import names, setup, spans
from dart_streams.telemetry.spans import ActiveSpan, UseSpan, context_of, current_headers
from workers.curator.decision_spans import trace_decisions

STEPS = 3
"""Steps of an episode."""
EPISODES = 300
"""Their spans are fewer than the queue has room for."""
AGENTS = ("difficulty", "budget", "groups", "dispatch")
PREFIX = "bench."


class Read(NamedTuple):
    """A consumed record's place."""

    topic: str
    partition: int = 1
    offset: int = 1234


def spans_alone(ratio: float | None) -> float:
    """Make the spans of some episodes; return microseconds of CPU time a step, without their export's wait."""
    setup.sample(ratio)
    gc.collect()
    cpu_s = time.process_time()
    for number in range(EPISODES):
        make_episode(f"01977b1e-5b1e-7d2a-9c1d-{number:012d}")
    flush()
    return (time.process_time() - cpu_s) * 1e6 / (EPISODES * STEPS)


def flush() -> None:
    """Write the ended spans."""
    if spans.Tracing.provider is not None:
        spans.Tracing.provider.force_flush()


def make_episode(identity: str) -> None:
    """Make the spans of an episode in all processes, and hand contexts on as records do."""
    about = {names.ATTR_TRAJECTORY: identity}
    own = ActiveSpan(
        names.SPAN_TRAJECTORY,
        ids=spans.trajectory_span(identity),
        parent=spans.ROOT,
        attributes=about | {names.ATTR_TASK: "simulated/steps#1", names.ATTR_GROUP: "g1", names.ATTR_HOST: "env-0"},
        by_rate=True,
    )
    for number in range(STEPS):
        make_step(identity, number, own.ref)
    own.end()
    with UseSpan(own.ref):
        headers = current_headers()
    for agent in AGENTS:
        trace_decisions(PREFIX, agent, [JournalInput("trajectories", 0, 7, 1_700_000_000_000, None, b"", headers)])
    step = ActiveSpan(names.SPAN_TRAIN_STEP, ids=spans.train_step_span(PREFIX, 1), parent=spans.ROOT)
    spans.trace_training(step, [identity])


def make_step(identity: str, number: int, own: spans.SpanRef) -> None:
    """Make the spans of a step."""
    about: dict[str, Any] = {names.ATTR_TRAJECTORY: identity, names.ATTR_STEP: number}
    step = ActiveSpan(names.SPAN_STEP, parent=own, links=[own], attributes=about | {names.ATTR_HOST: "env-0"})
    request = {names.ATTR_REQUEST: f"{identity}/{number}/0"}
    with UseSpan(step.ref):
        sends = spans.send_attributes(PREFIX + "action-requests")
        with ActiveSpan(names.SPAN_REQUEST, attributes=about | sends | request):
            asked = current_headers()
        with ActiveSpan(names.SPAN_EXECUTE, attributes=about):
            pass
        observed = current_headers()
    step.end()
    model = {names.ATTR_GEN_OPERATION: "chat", names.ATTR_GEN_PROVIDER: "scripted", names.ATTR_GEN_MODEL: "tiny"}
    takes = spans.process_attributes(Read(PREFIX + "action-requests"), PREFIX + "rollout")
    attributes = takes | model | request | about | {names.ATTR_HOST: "rollout-0"}
    with ActiveSpan(names.SPAN_GENERATE, parent=context_of(asked), attributes=attributes) as span:
        with ActiveSpan(names.SPAN_ENGINE, attributes=request):
            pass
        span.set_attributes(
            ATTR_QUEUE_MS=0.1,
            ATTR_FETCH_MS=0.0,
            ATTR_GENERATE_MS=2.5,
            ATTR_PREFILL_MS=2.0,
            ATTR_DECODE_MS=0.5,
            ATTR_TOKENS=12,
            ATTR_GEN_INPUT=700,
            ATTR_GEN_OUTPUT=12,
            ATTR_VERSION=3,
        )
        current_headers()
    row = {names.ATTR_DB: "cassandra", names.ATTR_DB_TABLE: "steps", names.ATTR_DB_OPERATION: "INSERT"}
    takes = spans.process_attributes(Read(PREFIX + "observations"), PREFIX + "recorder")
    with ActiveSpan(names.SPAN_RECORD, parent=context_of(observed), attributes=takes | row | about):
        pass
