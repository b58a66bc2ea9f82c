"""Spans are found by name, failures are always written, and nothing that ends a span waits or fails."""

import json
import threading
from pathlib import Path

import pytest
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dart_streams.telemetry import lines, names, propagation, setup, spans
from dart_streams.telemetry.lines import LineSpanExporter
from dart_streams.telemetry.outbox import Outbox
from dart_streams.telemetry.sampling import RatioAndFailures
from dart_streams.telemetry.spans import NamedIds, traced


@pytest.fixture
def tracing(monkeypatch: pytest.MonkeyPatch):
    """Make spans of a provider of the test's own, of this ratio; return what is written."""

    def start(ratio: float) -> InMemorySpanExporter:
        provider = TracerProvider(RatioAndFailures(ratio), id_generator=NamedIds())
        written = InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(written))
        monkeypatch.setattr(spans, "_tracer", provider.get_tracer("test"))
        return written

    return start


def test_a_named_span_has_the_ids_that_others_link_to_and_its_children_have_their_own(tracing):
    written = tracing(1.0)
    name = spans.trajectory("t1")
    with traced(names.SPAN_TRAJECTORY, ids=name, parent=spans.ROOT), traced(names.SPAN_RECORD):
        pass
    with traced(names.SPAN_GROUP, links=[name]):
        pass
    child, own, group = written.get_finished_spans()
    assert (own.context.trace_id, own.context.span_id, own.parent) == (name.trace_id, name.span_id, None)
    assert (child.context.trace_id, child.parent.span_id) == (name.trace_id, name.span_id)
    assert child.context.span_id != name.span_id
    assert (group.links[0].context.trace_id, group.links[0].context.span_id) == (name.trace_id, name.span_id)
    assert len({spans.trajectory("t2").trace_id, name.trace_id, spans.group("r", "t1").trace_id}) == 3


def test_the_context_crosses_a_record_s_headers(tracing):
    written = tracing(1.0)
    with traced(names.SPAN_STEP, parent=spans.ROOT):
        headers = propagation.current_headers()
    with traced(names.SPAN_RECORD, parent=propagation.context_of(headers)):
        pass
    step, record = written.get_finished_spans()
    assert (record.context.trace_id, record.parent.span_id) == (step.context.trace_id, step.context.span_id)


def test_without_sampling_only_failures_are_written_under_their_own_ids(tracing):
    written = tracing(0.0)
    with traced(names.SPAN_STEP, parent=spans.ROOT) as step:
        with traced(names.SPAN_REQUEST, attributes={names.ATTR_REQUEST: "t/0/0"}) as request:
            request.note(ATTR_QUEUE_MS=3.0)
            request.fail("no reply within 5 s")
        with pytest.raises(ValueError, match="bad"), traced(names.SPAN_EXECUTE):
            raise ValueError("bad")
    late, raised = written.get_finished_spans()
    assert late.context.trace_id == step.span.get_span_context().trace_id == raised.context.trace_id
    assert late.parent.span_id == step.span.get_span_context().span_id
    assert late.attributes == {names.ATTR_REQUEST: "t/0/0", names.ATTR_QUEUE_MS: 3.0, names.ATTR_KEPT: True}
    assert (late.status.is_ok, late.status.description) == (False, "no reply within 5 s")
    assert raised.status.description == "ValueError: bad"


def test_a_log_line_names_its_trace_if_that_is_written(tracing):
    assert setup.add_trace(None, "info", {"event": "e"}) == {"event": "e"}
    for ratio, expected in (
        (1.0, {"event": "e", "trace": f"{spans.trajectory('t').trace_id:032x}"}),
        (0.0, {"event": "e"}),
    ):
        tracing(ratio)
        with traced(names.SPAN_TRAJECTORY, ids=spans.trajectory("t"), parent=spans.ROOT):
            assert setup.add_trace(None, "info", {"event": "e"}) == expected


def test_the_ratio_picks_whole_traces(tracing):
    written = tracing(0.3)
    for number in range(300):
        with traced(names.SPAN_TRAJECTORY, ids=spans.trajectory(f"t{number}"), parent=spans.ROOT), traced("child"):
            pass
    found = written.get_finished_spans()
    traces = {span.context.trace_id for span in found}
    assert len(found) == 2 * len(traces)
    assert 60 < len(traces) < 120


def test_without_telemetry_spans_cost_no_error():
    with traced(names.SPAN_STEP, ids=spans.trajectory("t")) as span:
        span.note(ATTR_OUTCOME="success")
        span.fail("why")
    assert contexts.get_current() == contexts.Context()


class Stuck(SpanExporter):
    """An exporter that takes nothing until it is freed, and then fails or raises."""

    def __init__(self, outcome: SpanExportResult | Exception) -> None:
        self.outcome = outcome
        self.called = threading.Event()
        self.free = threading.Event()

    def export(self, spans) -> SpanExportResult:
        self.called.set()
        self.free.wait(10)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


@pytest.mark.parametrize("outcome", [SpanExportResult.FAILURE, RuntimeError("no collector"), SpanExportResult.SUCCESS])
def test_an_exporter_that_stands_still_or_fails_drops_spans_and_counts_them(outcome):
    exporter = Stuck(outcome)
    outbox = Outbox(exporter, most=10, every_s=0.01)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(outbox)
    tracer = provider.get_tracer("test")
    tracer.start_span("first").end()
    assert exporter.called.wait(5)
    for _ in range(24):
        tracer.start_span("more").end()
    assert outbox.dropped == 15
    exporter.free.set()
    outbox.shutdown()
    assert outbox.dropped == (15 if outcome is SpanExportResult.SUCCESS else 25)


def test_a_full_file_gives_way_and_the_oldest_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lines, "MOST_FILES", 3)
    exporter = LineSpanExporter(tmp_path / "env-0.jsonl", "env-0", most_bytes=1)
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("test")
    for number in range(6):
        span = tracer.start_span(f"span {number}")
        span.end()
        assert exporter.export([span]) is SpanExportResult.SUCCESS
    found = {path.name: json.loads(path.read_text())["name"] for path in tmp_path.iterdir()}
    assert found == {"env-0.jsonl": "span 5", "env-0.1.jsonl": "span 4", "env-0.2.jsonl": "span 3"}


def test_a_folder_that_cannot_be_written_fails_no_one(tmp_path: Path):
    (tmp_path / "file").write_text("")
    exporter = LineSpanExporter(tmp_path / "file" / "env-0.jsonl", "env-0")
    span = trace.get_tracer("test").start_span("span")
    assert exporter.export([]) is SpanExportResult.FAILURE
    span.end()
