"""Reads the spans of a run: latency of requests by part, and the traced share of trained steps."""

import contextlib
import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from console.runs.run_folder import exported_files
from console.runs.run_state import RunState
from dart_streams.config.text import MALFORMED
from dart_streams.telemetry import names, spans
from dart_streams.telemetry.spans import SpanRef
from topics.trained import TrainedStep

PARTS = (
    ("queue", names.ATTR_QUEUE_MS),
    ("screenshots", names.ATTR_FETCH_MS),
    ("prefill", names.ATTR_PREFILL_MS),
    ("decode", names.ATTR_DECODE_MS),
)
"""Attributes of a rollout worker's span that have the milliseconds of its parts."""
EXAMPLES = 5


class RecordedSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A span in a trace file; times are epoch milliseconds, ids and links hex."""

    process: str
    name: str
    trace: str
    span: str
    parent: str | None = None
    start_ms: float = 0.0
    end_ms: float = 0.0
    status: str = "UNSET"
    failure: str = ""
    attributes: dict[str, Any] = {}
    links: list[str] = []

    @property
    def ms(self) -> float:
        """Duration."""
        return self.end_ms - self.start_ms


class Timeline:
    """All spans of a run, by id, by parent, by step (trajectory, index), and switches by version."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self.by_id: dict[str, RecordedSpan] = {}
        self.children: defaultdict[str, list[RecordedSpan]] = defaultdict(list)
        self.steps: dict[tuple[str, int], RecordedSpan] = {}
        self.switches: defaultdict[int, list[RecordedSpan]] = defaultdict(list)
        decoder = msgspec.json.Decoder(RecordedSpan)
        for line in lines:
            with contextlib.suppress(*MALFORMED, TypeError):  # the last line of a process that was killed, or a list
                self._add(decoder.decode(line))

    def _add(self, span: RecordedSpan) -> None:
        self.by_id[f"{span.trace}:{span.span}"] = span
        if span.parent is not None:
            self.children[f"{span.trace}:{span.parent}"].append(span)
        if span.name == names.SPAN_STEP:
            place = (span.attributes.get(names.ATTR_TRAJECTORY, ""), span.attributes.get(names.ATTR_STEP, -1))
            self.steps[place] = span
        elif span.name == names.SPAN_SWITCH:
            self.switches[span.attributes.get(names.ATTR_VERSION, -1)].append(span)

    def below(self, span: RecordedSpan) -> list[RecordedSpan]:
        """Return a span and all below it."""
        found = [span]
        for one in found:
            found += self.children.get(f"{one.trace}:{one.span}", ())
        return found

    def get(self, ref: SpanRef) -> RecordedSpan | None:
        """Return the span, or None."""
        return self.by_id.get(id_of(ref))


def id_of(ref: SpanRef) -> str:
    """Return a span's id in the form of links: ``trace:span``, in hex."""
    return f"{ref.trace_id:032x}:{ref.span_id:016x}"


def lines_in(folder: Path) -> Iterator[bytes]:
    """Yield the lines of a run's trace files."""
    for path in exported_files(folder):
        with path.open("rb") as file:
            yield from file


class RequestSegment(msgspec.Struct, frozen=True):
    """A part of a request's latency."""

    name: str
    ms: float


class SlowRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Latency of a request; ``most`` names its longest segment."""

    request_id: str
    total_ms: float
    most: str
    most_ms: float
    segments: dict[str, float]


def request_segments(trace: Sequence[RecordedSpan]) -> list[RequestSegment]:
    """Return the parts of a step's latency in order, without those whose spans are missing."""
    by_name = {span.name: span for span in sorted(answer_in_time(trace), key=attrgetter("start_ms"))}
    request, generate = by_name.get(names.SPAN_REQUEST), by_name.get(names.SPAN_GENERATE)
    parts: list[tuple[str, float]] = []
    if request and generate:
        given = ((name, generate.attributes.get(key)) for name, key in PARTS)
        inside = [(name, float(ms) if isinstance(ms, int | float) else 0.0) for name, ms in given]
        # The queue may have begun on the topic, before the span did.
        rest = generate.ms - sum(ms for _, ms in inside)
        parts += [("to the rollout worker", generate.start_ms - request.start_ms), *inside, ("publish the reply", rest)]
        parts.append(("reply to the env worker", request.end_ms - generate.end_ms))
    elif request:
        parts.append(("request (no worker's span)", request.ms))
    execute, record = by_name.get(names.SPAN_EXECUTE), by_name.get(names.SPAN_RECORD)
    if execute:
        parts.append(("execute", execute.ms))
    if record:
        if before := execute or request:
            parts.append(("observation to the recorder", record.start_ms - before.end_ms))
        parts.append(("write to the store", record.ms))
    return [RequestSegment(name, round(max(0.0, ms), 3)) for name, ms in parts]


def answer_in_time(trace: Sequence[RecordedSpan]) -> Sequence[RecordedSpan]:
    """Return a step's spans without those of answers that came after another one, as of a worker that took over."""
    ends = [span.end_ms for span in trace if span.name == names.SPAN_REQUEST]
    given = [span for span in trace if span.name == names.SPAN_GENERATE]
    late = {span.span for span in given if ends and span.end_ms > max(ends)}
    return trace if len(late) == len(given) else [span for span in trace if not {span.span, span.parent} & late]


def slowest_requests(timeline: Timeline, most: int) -> list[SlowRequest]:
    """Return the step requests of highest latency."""
    requests = []
    for span in timeline.steps.values():
        trace = answer_in_time(timeline.below(span))
        sent, parts = [other for other in trace if other.name == names.SPAN_REQUEST], request_segments(trace)
        if sent and parts:
            worst = max(parts, key=attrgetter("ms"))
            request = SlowRequest(
                request_id=sent[-1].attributes.get(names.ATTR_REQUEST, ""),
                total_ms=round(max(other.end_ms for other in trace) - span.start_ms, 3),
                most=worst.name,
                most_ms=worst.ms,
                segments={part.name: part.ms for part in parts},
            )
            requests.append(request)
    return heapq.nlargest(most, requests, key=attrgetter("total_ms"))


class Coverage(msgspec.Struct, kw_only=True):
    """Number of trained actions, and of those that spans trace back to their screenshot.

    ``broken`` counts the others by their first missing link: the span of (or link to) the train step, group,
    trajectory, step or record, or the screenshot in the log.
    """

    trained_steps: int = 0
    traced_steps: int = 0
    coverage: float | None = None
    optimizer_steps: int = 0
    broken: dict[str, int] = {}
    examples: list[str] = []


def measure_coverage(state: RunState, timeline: Timeline, run: str) -> Coverage:
    """Follow the links of spans from every trained action of a run back to its screenshot."""
    result, chains = Coverage(optimizer_steps=len(state.trained)), Chains(state, timeline, run)
    broken: Counter[str] = Counter()
    for step in state.trained.values():
        for action, missing in chains.of(step):
            result.trained_steps += 1
            result.traced_steps += not missing
            if missing:
                broken[missing] += 1
                if len(result.examples) < EXAMPLES:
                    result.examples.append(f"train step {step.train_step}, {action}: {missing}")
    result.broken = dict(broken)
    result.coverage = result.traced_steps / result.trained_steps if result.trained_steps else None
    return result


class Chains:
    """Finds the first missing link between a trained action and its screenshot."""

    def __init__(self, state: RunState, timeline: Timeline, run: str) -> None:
        self.state = state
        self.timeline = timeline
        self.run = run

    def of(self, step: TrainedStep) -> Iterator[tuple[str, str]]:
        """Yield each action that an optimizer step took, and its first missing link (empty if none)."""
        top = self.timeline.get(spans.train_step_span(self.run, step.version))
        for group_id in step.group_ids:
            if group_id not in self.state.groups:
                yield f"group {group_id}", "the group in the log"
                continue
            group = self.linked(top, id_of(spans.group_span(self.run, group_id)))
            above = "train step" if top is None else "group" if group is None else ""
            for member in self.state.groups[group_id][0].members:
                identity = id_of(spans.trajectory_span(member.trajectory_id))
                above_steps = above or ("trajectory" if self.linked(group, identity) is None else "")
                for index in member.selected:
                    missing = above_steps or self.missing_below(member.trajectory_id, index, identity)
                    yield f"{member.trajectory_id}/{index}", missing

    def missing_below(self, trajectory_id: str, index: int, identity: str) -> str:
        """Return the first missing link between a trajectory and the screenshot of action ``index``."""
        step = self.timeline.steps.get((trajectory_id, index))
        if step is None or identity not in step.links:
            return "step"
        recorded = {names.ATTR_TRAJECTORY: trajectory_id, names.ATTR_STEP: index + 1}.items()
        records = (span for span in self.timeline.below(step) if span.name == names.SPAN_RECORD)
        if not any(recorded <= span.attributes.items() for span in records):
            return "record"
        shown = self.state.observation(trajectory_id, index)
        return "" if shown is not None and shown.screenshot is not None else "screenshot"

    def linked(self, above: RecordedSpan | None, identity: str) -> RecordedSpan | None:
        """Return a span that another one links to, or None if the link or the span is missing."""
        return self.timeline.by_id.get(identity) if above is not None and identity in above.links else None
