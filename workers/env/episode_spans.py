"""The spans of one episode: its own, and one a step, each a trace of its own that links to the trajectory's."""

import asyncio
from typing import Any

from dart_streams.telemetry import names, spans
from topics.observations import EpisodeEnd
from topics.rollout_orders import RolloutOrder
from topics.transitions import FAULTS


class EpisodeSpans:
    """A step's span lasts until the observation it leads to is told: that record carries its context."""

    def __init__(self, trajectory_id: str, task_id: str, order: RolloutOrder, host: str) -> None:
        self.trajectory_id = trajectory_id
        self.host = host
        self.named = spans.trajectory(trajectory_id)
        self.number: int | None = None
        self.step: spans.ActiveSpan | None = None
        self.own = spans.ActiveSpan(
            names.SPAN_TRAJECTORY,
            ids=self.named,
            parent=spans.ROOT,
            attributes={
                names.ATTR_TRAJECTORY: trajectory_id,
                names.ATTR_TASK: task_id,
                names.ATTR_GROUP: order.group_id,
                names.ATTR_HOST: host,
            },
        )

    def current(self) -> spans.UseSpan:
        """Be within the step under way, or before the first one within the trajectory."""
        return spans.UseSpan((self.step or self.own).ref)

    def begin_step(self, number: int) -> None:
        """Begin the step that is decided on screen ``number`` (from 0)."""
        self.number = number
        self.step = spans.ActiveSpan(
            names.SPAN_STEP,
            parent=spans.ROOT,
            links=[self.named],
            attributes=self.attributes | {names.ATTR_HOST: self.host},
        )

    def step_told(self, telling: "asyncio.Future[None]") -> None:
        """End the step under way when the observation that it led to is published."""
        step, self.step = self.step, None
        if step is not None:
            telling.add_done_callback(lambda _: step.end())

    def ended(self, end: EpisodeEnd) -> None:
        """Note how the episode has ended. A fault, or a straggler cut off, has failed."""
        self.own.set_attributes(ATTR_OUTCOME=end.kind)
        if end.kind in FAULTS or end.reason == "straggler":
            self.own.set_error(end.reason or end.kind)

    @property
    def attributes(self) -> dict[str, Any]:
        """What spans of the step under way have in common."""
        common: dict[str, Any] = {names.ATTR_TRAJECTORY: self.trajectory_id}
        if self.number is not None:
            common[names.ATTR_STEP] = self.number
        return common
