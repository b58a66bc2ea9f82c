"""Is the chain from each trained step back to its screenshot unbroken? Followed over the spans' own links. Pure."""

from collections import Counter

import msgspec

from dart_streams.history.run_state import RunState
from dart_streams.history.span_index import RecordedSpan, Timeline, id_of
from dart_streams.telemetry import names, spans
from topics.curated import Member
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
    found = Coverage(optimiser_steps=len(state.trained))
    broken: Counter[str] = Counter()
    for step in state.trained.values():
        for place, missing in followed(step, state, timeline, run):
            found.trained_steps += 1
            found.traced_steps += not missing
            if missing:
                broken[missing] += 1
                if len(found.examples) < EXAMPLES:
                    found.examples.append(f"train step {step.train_step}, {place}: {missing}")
    found.broken = dict(broken)
    found.coverage = found.traced_steps / found.trained_steps if found.trained_steps else None
    return found


def followed(step: TrainedStep, state: RunState, timeline: Timeline, run: str) -> list[tuple[str, str]]:
    """Return each action that an optimiser step took, and the first link that its chain lacks (empty if none)."""
    top = timeline.get(spans.train_step(run, step.version))
    result = []
    for group_id in step.group_ids:
        if group_id not in state.groups:
            result.append((f"group {group_id}", "the group in the log"))
            continue
        above = "train step" if top is None else ""
        span = linked(timeline, top, id_of(spans.group(run, group_id)))
        above = above or ("group" if span is None else "")
        for member in state.groups[group_id][0].members:
            result += followed_member(member, span, above, state, timeline)
    return result


def followed_member(
    member: Member, group: RecordedSpan | None, above: str, state: RunState, timeline: Timeline
) -> list[tuple[str, str]]:
    """Return the trained actions of a group's member; ``above`` names a link that is missing further up."""
    identity = id_of(spans.trajectory(member.trajectory_id))
    above = above or ("trajectory" if linked(timeline, group, identity) is None else "")
    return [
        (f"{member.trajectory_id}/{index}", above or below(member.trajectory_id, index, identity, state, timeline))
        for index in member.selected
    ]


def below(trajectory_id: str, index: int, identity: str, state: RunState, timeline: Timeline) -> str:
    """Return the first link that is missing between a trajectory and the screenshot of action ``index``."""
    step = timeline.step(trajectory_id, index)
    if step is None or identity not in step.links:
        return "step"
    if not any(is_record(span, trajectory_id, index + 1) for span in timeline.traces[step.trace]):
        return "record"
    shown = state.observation(trajectory_id, index)
    return "" if shown is not None and shown.screenshot is not None else "screenshot"


def is_record(span: RecordedSpan, trajectory_id: str, step: int) -> bool:
    """Say whether a span is that of the recorder writing this observation."""
    attributes = span.attributes
    return (
        span.name == names.SPAN_RECORD
        and attributes.get(names.ATTR_TRAJECTORY) == trajectory_id
        and attributes.get(names.ATTR_STEP) == step
    )


def linked(timeline: Timeline, above: RecordedSpan | None, identity: str) -> RecordedSpan | None:
    """Return the span that another one links to, or None if the link or the span is missing."""
    return timeline.by_id.get(identity) if above is not None and identity in above.links else None
