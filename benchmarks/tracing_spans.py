"""The spans and record headers of steps alone, without a circle: what they cost to the microsecond."""

import gc
import time
from typing import Any

from dart_streams.telemetry import names, setup, spans
from dart_streams.telemetry.spans import ActiveSpan, Header, context_of, current_headers

STEPS = 3
"""Of an episode."""
EPISODES = 400
"""At ratio 1.0 fewer spans than the queue has room for."""


def spans_alone(ratio: float | None) -> float:
    """Make the spans and headers of some episodes, write them out, and return microseconds of CPU time a step."""
    setup.sample(ratio)
    gc.collect()
    cpu_s = time.process_time()
    for number in range(EPISODES):
        spans_of_an_episode(f"0190-{number}")
    setup.flush()
    return (time.process_time() - cpu_s) * 1e6 / (EPISODES * STEPS)


def spans_of_an_episode(identity: str) -> None:
    """Make the spans that three workers make of an episode, and hand contexts on as its records do."""
    own = ActiveSpan(
        names.SPAN_TRAJECTORY, ids=spans.trajectory(identity), parent=spans.ROOT, attributes=about(identity)
    )
    with own:
        for number in range(STEPS):
            step = ActiveSpan(names.SPAN_STEP, parent=spans.ROOT, links=[own.ref], attributes=about(identity, number))
            with spans.UseSpan(step.ref):
                with ActiveSpan(names.SPAN_REQUEST, attributes=about(identity, number)):
                    asked = current_headers()
                    generate(identity, number, asked)
                with ActiveSpan(names.SPAN_EXECUTE, attributes=about(identity, number)):
                    pass
                observed = current_headers()
            step.end()
            with ActiveSpan(names.SPAN_RECORD, parent=context_of(observed), attributes=about(identity, number)):
                pass


def generate(identity: str, number: int, asked: list[Header]) -> None:
    """Make the span of a rollout worker."""
    with ActiveSpan(names.SPAN_GENERATE, parent=context_of(asked), attributes=about(identity, number)) as span:
        span.set_attributes(
            ATTR_QUEUE_MS=0.1, ATTR_FETCH_MS=0.0, ATTR_GENERATE_MS=2.5, ATTR_PREFILL_MS=2.0, ATTR_DECODE_MS=0.5
        )
        span.set_attributes(ATTR_PREFILL_MS=2.0, ATTR_DECODE_MS=0.5, ATTR_TOKENS=12, ATTR_VERSION=3)
        current_headers()


def about(identity: str, number: int = 0) -> dict[str, Any]:
    """Return as many attributes as most spans have."""
    return {names.ATTR_TRAJECTORY: identity, names.ATTR_STEP: number, names.ATTR_HOST: "env-0"}
