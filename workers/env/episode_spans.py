"""The spans of one episode: its own, which begins the trajectory's trace, and one per step below it."""

import asyncio
from typing import Any

from dart_streams.telemetry import names, spans
from topics.observations import EpisodeEnd
from topics.rollout_orders import RolloutOrder
from topics.transitions import FAULTS


class EpisodeSpans:
    """Spans of an episode and its steps; a step's span ends when its observation, which carries it, is published.

    ``attributes`` are shared by the spans of the current step.
    """

    def __init__(self, trajectory_id: str, task_id: str, order: RolloutOrder, host: str) -> None:
        self.host = host
        self.named = spans.trajectory_span(trajectory_id)
        self.attributes: dict[str, Any] = {names.ATTR_TRAJECTORY: trajectory_id}
        self.step: spans.ActiveSpan | None = None
        self.trajectory = spans.ActiveSpan(
            names.SPAN_TRAJECTORY,
            ids=self.named,
            parent=spans.ROOT,
            attributes={
                **self.attributes,
                names.ATTR_TASK: task_id,
                names.ATTR_GROUP: order.group_id,
                names.ATTR_HOST: host,
            },
            by_rate=True,
        )

    def current(self) -> spans.UseSpan:
        """Return a context with the current step's span, or the trajectory's before the first step."""
        return spans.UseSpan((self.step or self.trajectory).ref)

    def begin_step(self, number: int, take_over: str | None) -> None:
        """Begin the step whose action follows observation ``number``, and is asked of the person of a take-over."""
        self.attributes = {**self.attributes, names.ATTR_STEP: number}
        self.attributes.pop(names.ATTR_TAKE_OVER, None)
        if take_over is not None:
            self.attributes[names.ATTR_TAKE_OVER] = take_over
        self.step = spans.ActiveSpan(
            names.SPAN_STEP,
            parent=self.trajectory.ref,
            links=[self.named],
            attributes=self.attributes | {names.ATTR_HOST: self.host},
        )

    def end_step(self, published: "asyncio.Future[None]") -> None:
        """End the current step when the observation it led to is ``published``."""
        step, self.step = self.step, None
        if step is not None:
            published.add_done_callback(lambda _: step.end())

    def set_outcome(self, end: EpisodeEnd) -> None:
        """Record how the episode ended; a fault is an error."""
        self.trajectory.set_attributes(ATTR_OUTCOME=end.kind)
        if end.kind in FAULTS:
            self.trajectory.set_error(end.reason or end.kind, end.kind)
