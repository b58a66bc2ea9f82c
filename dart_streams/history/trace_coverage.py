"""Is the chain from each trained step back to its screenshot unbroken? Followed over the spans' own links. Pure."""

from collections import Counter
from collections.abc import Iterator

import msgspec

from dart_streams.history.run_state import RunState
from dart_streams.history.span_index import RecordedSpan, Timeline, id_of
from dart_streams.telemetry import names, spans
from topics.trained import TrainedStep

EXAMPLES = 5


class Coverage(msgspec.Struct, kw_only=True):
    """Of ``trained_steps`` actions that optimiser steps took, ``traced_steps`` can be followed to their screenshot.

    ``broken`` counts the others by the first link that is missing: the train step's span, the group's (or the link to
    it), the trajectory's, the step's, the recorder's, or the screenshot in the log. ``examples`` name a few.
    """

    trained_steps: int = 0
    traced_steps: int = 0
    coverage: float | None = None
    optimiser_steps: int = 0
    broken: dict[str, int] = {}
    examples: list[str] = []


def coverage(state: RunState, timeline: Timeline, run: str) -> Coverage:
    """Follow every trained step of a run."""
    found, chains = Coverage(optimiser_steps=len(state.trained)), Chains(state, timeline, run)
    broken: Counter[str] = Counter()
    for step in state.trained.values():
        for action, missing in chains.of(step):
            found.trained_steps += 1
            found.traced_steps += not missing
            if missing:
                broken[missing] += 1
                if len(found.examples) < EXAMPLES:
                    found.examples.append(f"train step {step.train_step}, {action}: {missing}")
    found.broken = dict(broken)
    found.coverage = found.traced_steps / found.trained_steps if found.trained_steps else None
    return found


class Chains:
    """The chains of a run's trained actions, each with the first link that it lacks (empty if none)."""

    def __init__(self, state: RunState, timeline: Timeline, run: str) -> None:
        self.state = state
        self.timeline = timeline
        self.run = run

    def of(self, step: TrainedStep) -> Iterator[tuple[str, str]]:
        """Yield each action that an optimiser step took, and the first link that its chain lacks."""
        top = self.timeline.get(spans.train_step(self.run, step.version))
        for group_id in step.group_ids:
            if group_id not in self.state.groups:
                yield f"group {group_id}", "the group in the log"
                continue
            group = self.linked(top, id_of(spans.group(self.run, group_id)))
            above = "train step" if top is None else "group" if group is None else ""
            for member in self.state.groups[group_id][0].members:
                identity = id_of(spans.trajectory(member.trajectory_id))
                above_steps = above or ("trajectory" if self.linked(group, identity) is None else "")
                for index in member.selected:
                    missing = above_steps or self.below(member.trajectory_id, index, identity)
                    yield f"{member.trajectory_id}/{index}", missing

    def below(self, trajectory_id: str, index: int, identity: str) -> str:
        """Return the first link that is missing between a trajectory and the screenshot of action ``index``."""
        step = self.timeline.step(trajectory_id, index)
        if step is None or identity not in step.links:
            return "step"
        if not any(is_record(span, trajectory_id, index + 1) for span in self.timeline.traces[step.trace]):
            return "record"
        shown = self.state.observation(trajectory_id, index)
        return "" if shown is not None and shown.screenshot is not None else "screenshot"

    def linked(self, above: RecordedSpan | None, identity: str) -> RecordedSpan | None:
        """Return the span that another one links to, or None if the link or the span is missing."""
        return self.timeline.by_id.get(identity) if above is not None and identity in above.links else None


def is_record(span: RecordedSpan, trajectory_id: str, step: int) -> bool:
    """Say whether a span is that of the recorder writing this observation."""
    wanted = {names.ATTR_TRAJECTORY: trajectory_id, names.ATTR_STEP: step}
    return span.name == names.SPAN_RECORD and wanted.items() <= span.attributes.items()
