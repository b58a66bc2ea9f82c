"""Spans are found by name, failures are always written, and nothing that ends a span waits or fails."""

import asyncio
import contextvars
import importlib
import json
import pkgutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased
from opentelemetry.semconv import attributes
from opentelemetry.semconv._incubating import attributes as incubating
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dart_streams.curation.journal import JournalInput
from dart_streams.telemetry import exporters as lines
from dart_streams.telemetry import names, spans
from dart_streams.telemetry.exporters import CountingSpanProcessor, LineSpanExporter
from dart_streams.telemetry.spans import ActiveSpan
from tests import events
from workers.curator.decision_spans import trace_decisions
from workers.env.episode_spans import EpisodeSpans
from workers.recorder.main import ObservationWriter

Start = Callable[[float], list[ReadableSpan]]


class Keeper(SpanProcessor):
    """Keeps what is written, as spans of the SDK."""

    def __init__(self) -> None:
        self.written: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.written.append(span.to_sdk(Resource.get_empty()) if isinstance(span, ActiveSpan) else span)


def begin(ratio: float) -> Keeper:
    keeper = Keeper()
    provider = spans.Provider(ratio, Resource.get_empty())
    provider.add_span_processor(keeper)
    spans.enable(ratio, provider)
    return keeper


@pytest.fixture
def tracing():
    """Trace with this ratio; return the list that written spans appear in."""
    yield lambda ratio: begin(ratio).written
    spans.disable()


def ref(context) -> spans.SpanRef:
    return spans.SpanRef(context.trace_id, context.span_id)


def test_a_named_span_has_derived_ids_and_its_children_have_new_ones(tracing: Start):
    written = tracing(1.0)
    name = spans.trajectory_span("t1")
    with ActiveSpan(names.SPAN_TRAJECTORY, ids=name, parent=spans.ROOT), ActiveSpan(names.SPAN_RECORD):
        pass
    with ActiveSpan(names.SPAN_GROUP, links=[name]):
        pass
    child, own, group = written
    assert (ref(own.context), own.parent) == (name, None)
    assert (child.context.trace_id, ref(child.parent)) == (name.trace_id, name)
    assert child.context.span_id != name.span_id
    assert [ref(link.context) for link in group.links] == [name]
    assert len({spans.trajectory_span("t2").trace_id, name.trace_id, spans.group_span("r", "t1").trace_id}) == 3


def test_the_context_crosses_a_record_s_headers(tracing: Start):
    written = tracing(1.0)
    with ActiveSpan(names.SPAN_STEP, parent=spans.ROOT):
        headers = spans.current_headers()
    with ActiveSpan(names.SPAN_RECORD, parent=spans.context_of(headers)):
        pass
    step, record = written
    assert ref(record.parent) == ref(step.context)
    assert spans.current_headers() == []


@settings(deadline=None)
@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())
def test_what_we_write_into_headers_is_what_opentelemetry_reads(trace_id: int, span_id: int, sampled: bool):
    with spans.UseSpan(spans.SpanRef(trace_id, span_id, sampled)):
        headers = spans.current_headers()
    carrier = {name: value.decode() for name, value in headers}
    context = trace.get_current_span(TraceContextTextMapPropagator().extract(carrier)).get_span_context()
    assert (context.trace_id, context.span_id, context.trace_flags.sampled) == (trace_id, span_id, sampled)


IDS = f"{7:032x}-{9:016x}"


@pytest.mark.parametrize(
    "value",
    [
        *(f"00-{IDS}-01", f"00-{IDS}-00", f"00-{IDS}-03", f"01-{IDS}-01", f"01-{IDS}-01-more", f"00-{IDS}-01-more"),
        *(f"ff-{IDS}-01", f"00-{'0' * 32}-{9:016x}-01", f"00-{7:032x}-{'0' * 16}-01", f"00-{'G' * 32}-{9:016x}-01"),
        *(f"00-{IDS}", ""),
    ],
)
def test_headers_that_others_write_are_read_as_opentelemetry_reads_them(value: str):
    read = spans.context_of([("id", b"x"), ("traceparent", None), ("traceparent", value.encode())])
    context = trace.get_current_span(TraceContextTextMapPropagator().extract({"traceparent": value})).get_span_context()
    expected = (context.trace_id, context.span_id, context.trace_flags.sampled) if context.is_valid else spans.ROOT
    assert read == expected


@settings(deadline=None)
@given(st.lists(st.integers(1, 2**128 - 1), min_size=1), st.floats(0, 1))
def test_the_ratio_picks_the_same_whole_traces_as_opentelemetry(traces: list[int], ratio: float):
    sampler = TraceIdRatioBased(ratio)
    written = begin(ratio).written
    try:
        for trace_id in traces:
            with ActiveSpan("span", ids=spans.SpanRef(trace_id, 1), parent=spans.ROOT), ActiveSpan("child"):
                pass
    finally:
        spans.disable()
    picked = [one for one in traces if sampler.should_sample(None, one, "span").decision is Decision.RECORD_AND_SAMPLE]
    assert [span.context.trace_id for span in written] == [one for one in picked for _ in ("child", "span")]


def test_without_sampling_only_failures_are_written_under_their_own_ids(tracing: Start):
    written = tracing(0.0)
    with ActiveSpan(names.SPAN_STEP, parent=spans.ROOT) as step:
        with ActiveSpan(names.SPAN_REQUEST, attributes={names.ATTR_REQUEST: "t/0/0"}) as request:
            request.set_attributes(ATTR_QUEUE_MS=3.0)
            request.set_error("no reply within 5 s", "TimeoutError")
        with pytest.raises(ValueError, match="bad"), ActiveSpan(names.SPAN_EXECUTE):
            raise ValueError("bad")
    late, raised = written
    assert late.context.trace_id == step.ref.trace_id == raised.context.trace_id
    assert late.parent.span_id == step.ref.span_id
    given = {names.ATTR_REQUEST: "t/0/0", names.ATTR_QUEUE_MS: 3.0}
    assert late.attributes == given | {names.ATTR_KEPT: True, names.ATTR_ERROR: "TimeoutError"}
    assert (late.status.is_ok, late.status.description) == (False, "no reply within 5 s")
    assert raised.status.description == "ValueError: bad"
    assert raised.attributes[names.ATTR_ERROR] == "ValueError"


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan")])
def test_a_ratio_that_is_none_is_refused(ratio: float):
    with pytest.raises(ValueError, match="between 0 and 1"):
        spans.enable(ratio, spans.Provider(1.0))


def test_without_telemetry_spans_are_nothing_and_records_carry_no_context():
    with ActiveSpan(names.SPAN_STEP, ids=spans.trajectory_span("t")) as span:
        span.set_attributes(ATTR_OUTCOME="success")
        span.set_error("why")
        assert spans.current_headers() == []
    assert spans.current_span() == spans.ROOT


def test_spans_that_others_make_join_ours_and_follow_their_ratio():
    for ratio in (1.0, 0.0):
        keeper = begin(ratio)
        theirs = spans.Tracing.provider.get_tracer("an engine's")
        with (
            ActiveSpan(names.SPAN_GENERATE, parent=spans.ROOT) as ours,
            theirs.start_as_current_span("prefill") as span,
        ):
            assert ref(span.parent if ratio else span.get_span_context()).trace_id == ours.ref.trace_id
            assert spans.current_span().trace_id == ours.ref.trace_id
        assert [one.name for one in keeper.written] == (["prefill", names.SPAN_GENERATE] if ratio else [])
    spans.disable()


async def test_tasks_inherit_the_span_and_a_closed_one_disturbs_no_other(tracing: Start):
    tracing(1.0)

    async def inside(name: str) -> spans.SpanRef:
        with ActiveSpan(name) as span:
            await asyncio.sleep(0)
            assert spans.current_span() == span.ref
            return span.ref

    async def abandoned() -> None:
        with ActiveSpan("abandoned"):
            await asyncio.Event().wait()

    with ActiveSpan("outer", parent=spans.ROOT) as outer:
        left = abandoned()
        contextvars.copy_context().run(left.send, None)
        refs = await asyncio.gather(*(inside(str(number)) for number in range(3)))
        assert {ref.trace_id for ref in refs} == {outer.ref.trace_id}
        left.close()
        assert spans.current_span() == outer.ref
    assert len({ref.span_id for ref in refs}) == 3


def ended() -> ReadableSpan:
    return ReadableSpan("span", context=spans.trajectory_span("t").as_context())


class Stuck(SpanExporter):
    """An exporter that takes nothing until it is freed, and then fails or raises."""

    def __init__(self, outcome: SpanExportResult | Exception) -> None:
        self.outcome = outcome
        self.batches = 0
        self.called = threading.Event()
        self.free = threading.Event()

    def export(self, spans) -> SpanExportResult:
        self.batches += 1
        self.called.set()
        self.free.wait(60)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def test_at_the_end_of_a_process_a_batch_that_fails_is_the_last_one():
    exporter = Stuck(SpanExportResult.FAILURE)
    processor = CountingSpanProcessor(exporter, every_s=3600)
    span = ended()
    for _ in range(5000):
        processor.on_end(span)
    assert exporter.called.wait(60)
    ending = threading.Thread(target=processor.shutdown)
    ending.start()
    assert processor.exporter.stopping.wait(60)
    exporter.free.set()
    ending.join()
    assert exporter.batches == 1
    assert processor.exporter.dropped == 5000


@pytest.mark.parametrize("outcome", [SpanExportResult.FAILURE, RuntimeError("no collector"), SpanExportResult.SUCCESS])
def test_an_exporter_that_hangs_or_fails_drops_spans_and_counts_them(outcome):
    exporter = Stuck(outcome)
    processor = CountingSpanProcessor(exporter, max_queue=10, every_s=0.01)
    span = ended()
    processor.on_end(span)
    assert exporter.called.wait(60)
    for _ in range(24):
        processor.on_end(span)
    assert processor.exporter.dropped == 15
    exporter.free.set()
    processor.shutdown()
    assert processor.exporter.dropped == (15 if outcome is SpanExportResult.SUCCESS else 25)


def test_beyond_a_rate_no_further_trajectory_is_sampled(tracing: Start, monkeypatch):
    rate = spans.TraceRate(3.0)
    monkeypatch.setattr(spans.Tracing, "rate", SimpleNamespace(take=lambda _: rate.take(100.0)))
    written, flags = tracing(1.0), []
    for number in range(5):
        own = spans.trajectory_span(f"t{number}")
        with ActiveSpan(names.SPAN_TRAJECTORY, ids=own, parent=spans.ROOT, by_rate=True) as trajectory:
            headers = spans.current_headers()
        with ActiveSpan(names.SPAN_RECORD, parent=spans.context_of(headers)):
            pass
        flags.append(trajectory.ref.sampled)
    assert flags == [True] * 3 + [False] * 2
    assert [one.name for one in written] == [names.SPAN_TRAJECTORY, names.SPAN_RECORD] * 3
    late = ActiveSpan(names.SPAN_TRAJECTORY, parent=spans.ROOT, by_rate=True)
    late.set_error("no reply")
    late.end()
    assert written[-1].status.description == "no reply"


class Publisher:
    """Keeps the headers of what is published."""

    async def publish(self, *_, **__) -> None:
        self.headers = spans.current_headers()


async def test_a_trajectory_keeps_its_trace_over_each_process(tracing: Start):
    """The wiring of the environment, the recorder, the agents and the trainer."""
    written, publisher = tracing(1.0), Publisher()
    episode = EpisodeSpans("t1", "task", events.rollout_order("g000001/0/0"), "env-0")
    episode.begin_step(0, None)
    with episode.current():
        headers = spans.current_headers()
    done = asyncio.get_running_loop().create_future()
    episode.end_step(done)
    done.set_result(None)
    await asyncio.sleep(0)
    episode.trajectory.end()
    item = SimpleNamespace(record=SimpleNamespace(headers=headers))
    await ObservationWriter(None, publisher)._publish(events.trajectory("t1"), item)
    for agent in ("difficulty", "groups"):
        read = JournalInput("trajectories", 2, 7, 1_700_000_000_000, None, b"", publisher.headers)
        trace_decisions("dart.r.", agent, [read])
    spans.trace_training(ActiveSpan(names.SPAN_TRAIN_STEP, parent=spans.ROOT), ["t1"])
    own = next(one for one in written if one.name == names.SPAN_TRAJECTORY)
    below = [names.SPAN_STEP, names.SPAN_DECIDE, names.SPAN_DECIDE, names.SPAN_TRAIN]
    assert [one.name for one in written if one is not own] == below
    assert {ref(one.parent) for one in written if one is not own} == {ref(own.context)}
    decided = next(one for one in written if one.name == names.SPAN_DECIDE)
    assert (decided.attributes["messaging.destination.name"], decided.attributes[names.ATTR_AGENT]) == (
        "dart.r.trajectories",
        "difficulty",
    )


def test_a_rate_comes_back_with_time():
    rate = spans.TraceRate(2.0)
    assert [rate.take(now) for now in (100.0, 100.0, 100.0, 100.25, 100.5, 100.75, 200.0)] == [
        *(True, True, False),
        *(False, True, False, True),
    ]


@pytest.mark.parametrize("ratio", [1.0, 0.5, 0.0])
def test_the_trainer_joins_the_trace_of_each_sampled_trajectory(tracing: Start, ratio: float):
    written, trajectories = tracing(ratio), [f"t{number}" for number in range(40)]
    sampled = set()
    for identity in trajectories:
        with ActiveSpan(names.SPAN_TRAJECTORY, ids=spans.trajectory_span(identity), parent=spans.ROOT) as own:
            sampled |= {own.ref} if own.ref.sampled else set()
    step = ActiveSpan(names.SPAN_TRAIN_STEP, ids=spans.train_step_span("r", 3), parent=spans.ROOT)
    step.set_attributes(ATTR_TRAIN_STEP=3)
    spans.trace_training(step, trajectories)
    found = [one for one in written if one.name == names.SPAN_TRAIN]
    assert {ref(one.parent) for one in found} == {one._replace(sampled=True) for one in sampled}
    assert len(found) == len(sampled) and (bool(found) is (ratio > 0))
    for one in found:
        assert (ref(one.links[0].context), one.attributes[names.ATTR_TRAIN_STEP]) == (
            step.ref._replace(sampled=True),
            3,
        )
        assert one.start_time == step.started_ns


def test_a_full_file_gives_way_and_an_unwritable_folder_fails_no_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lines, "MAX_FILES", 3)
    monkeypatch.setattr(lines, "MAX_BYTES", 1)
    exporter = LineSpanExporter(tmp_path / "env-0.jsonl", "env-0")
    for number in range(6):
        span = ReadableSpan(f"span {number}", context=spans.trajectory_span("t").as_context())
        assert exporter.export([span]) is SpanExportResult.SUCCESS
    found = {path.name: json.loads(path.read_text())["name"] for path in tmp_path.iterdir()}
    assert found == {"env-0.jsonl": "span 5", "env-0.1.jsonl": "span 4", "env-0.2.jsonl": "span 3"}
    (tmp_path / "file").write_text("")
    exporter = LineSpanExporter(tmp_path / "file" / "env-0.jsonl", "env-0")
    assert exporter.export([ended()]) is SpanExportResult.FAILURE


def test_attributes_are_this_projects_or_of_the_conventions():
    standard = {
        value
        for package in (attributes, incubating)
        for module in pkgutil.iter_modules(package.__path__)
        for name, value in vars(importlib.import_module(f"{package.__name__}.{module.name}")).items()
        if name.isupper() and isinstance(value, str)
    }
    ours = {value for name, value in vars(names).items() if name.startswith("ATTR_")}
    assert {value for value in ours if not value.startswith("dart.")} <= standard
    assert "messaging.kafka.offset" in standard & ours


def test_a_span_says_which_record_it_processes():
    record = SimpleNamespace(topic="dart.r.observations", partition=2, offset=7)
    assert spans.process_attributes(record, "dart.r.recorder") == {
        "messaging.system": "kafka",
        "messaging.operation.type": "process",
        "messaging.destination.name": "dart.r.observations",
        "messaging.destination.partition.id": "2",
        "messaging.kafka.offset": 7,
        "messaging.consumer.group.name": "dart.r.recorder",
    }
