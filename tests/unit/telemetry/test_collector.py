"""Spans and metrics reach a collector by OTLP; one that is away costs spans, which are counted, and nothing else."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource

from console.launch.services.daemon import free_port
from console.lineage.traces import Timeline, lines_in
from dart_streams.telemetry import exporters, names, spans
from dart_streams.telemetry.exporters import CountingSpanProcessor, collector_exporters
from dart_streams.telemetry.names import BY_NAME
from dart_streams.telemetry.spans import ActiveSpan, SpanRef
from dart_streams.version import VERSION
from tests.waiting import wait_until

BOUND_S = 60
ERROR = 2
KINDS = {"/v1/traces": ExportTraceServiceRequest, "/v1/metrics": ExportMetricsServiceRequest}


class Receiver:
    """An OTLP/HTTP receiver: decodes what comes, and answers as the protocol has it."""

    def __init__(self, port: int = 0, headers: dict[str, str] | None = None) -> None:
        self.refused = 0
        self.got: dict[str, list[Any]] = {path: [] for path in KINDS}
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if any(self.headers[name] != value for name, value in (headers or {}).items()):
                    receiver.refused += 1
                    self.send_error(401)
                    return
                receiver.got[self.path].append(KINDS[self.path].FromString(body))
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    @property
    def port(self) -> int:
        return self.server.server_address[1]

    def spans(self) -> list[tuple[dict[str, Any], Any]]:
        """Return resources and spans as they came."""
        return [
            (values(group.resource.attributes), span)
            for request in self.got["/v1/traces"]
            for group in request.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
        ]

    def metrics(self) -> dict[str, Any]:
        """Return the newest of each metric."""
        return {
            metric.name: metric
            for request in self.got["/v1/metrics"]
            for group in request.resource_metrics
            for scope in group.scope_metrics
            for metric in scope.metrics
        }

    def resources(self) -> list[dict[str, Any]]:
        """Return the resources that metrics came from."""
        return [values(group.resource.attributes) for one in self.got["/v1/metrics"] for group in one.resource_metrics]

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def values(attributes) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    started = Receiver()
    yield started
    started.stop()


@pytest.fixture
def processor() -> Iterator[Callable[[int], CountingSpanProcessor]]:
    made = []

    def start(port: int, **settings) -> CountingSpanProcessor:
        resource = Resource.create({"service.instance.id": "env-0"})
        provider = spans.Provider(1.0, resource)
        _, exporter = collector_exporters(f"http://127.0.0.1:{port}/", resource)
        made.append(CountingSpanProcessor(exporter, every_s=0.01, **settings))
        provider.add_span_processor(made[-1])
        spans.enable(1.0, provider)
        return made[-1]

    yield start
    spans.disable()
    for one in made:
        one.shutdown()


def ids(span) -> SpanRef:
    return SpanRef(int.from_bytes(span.trace_id), int.from_bytes(span.span_id))


def test_a_span_arrives_as_it_was_made(receiver: Receiver, processor, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exporters, "COLLECTOR_TIMEOUT_S", BOUND_S)
    own = spans.trajectory_span("t")
    processor(receiver.port)
    step = ActiveSpan(names.SPAN_STEP, parent=spans.ROOT, links=[own], attributes={names.ATTR_STEP: 3})
    with step, ActiveSpan(names.SPAN_REQUEST) as request:
        request.set_attributes(ATTR_REQUEST="t/3/0", ATTR_QUEUE_MS=1.5)
        request.set_error("no reply within 5 s")
    wait_until(lambda: len(receiver.spans()) == 2)
    (resource, failed), (_, whole) = receiver.spans()
    assert resource["service.instance.id"] == "env-0"
    assert (ids(failed), failed.parent_span_id) == (request.ref, whole.span_id)
    assert (failed.status.code, failed.status.message) == (ERROR, "no reply within 5 s")
    assert values(failed.attributes) == {names.ATTR_REQUEST: "t/3/0", names.ATTR_QUEUE_MS: 1.5, "error.type": "_OTHER"}
    assert (ids(whole), whole.parent_span_id, whole.name) == (step.ref, b"", names.SPAN_STEP)
    assert [ids(link) for link in whole.links] == [own]
    assert values(whole.attributes) == {names.ATTR_STEP: 3}
    assert whole.start_time_unix_nano == step.started_ns
    assert step.started_ns <= failed.start_time_unix_nano <= failed.end_time_unix_nano <= whole.end_time_unix_nano


def test_spans_are_dropped_only_while_the_collector_is_away(processor, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exporters, "COLLECTOR_TIMEOUT_S", BOUND_S)
    monkeypatch.setattr("opentelemetry.exporter.otlp.common.http._MAX_RETRIES", 1)  # else it retries for as long
    gone = Receiver(free_port())
    gone.stop()
    started = processor(gone.port)
    with ActiveSpan("lost", parent=spans.ROOT):
        pass
    wait_until(lambda: started.exporter.dropped == 1)
    back = Receiver(gone.port)
    try:
        with ActiveSpan("kept", parent=spans.ROOT):
            pass
        wait_until(lambda: [span.name for _, span in back.spans()] == ["kept"])
        assert started.force_flush()
        assert started.exporter.dropped == 1
    finally:
        back.stop()


PROCESS = """
import sys
from pathlib import Path
from opentelemetry import metrics
from dart_streams import config
from dart_streams.telemetry import exporters, names, setup
from dart_streams.telemetry.instruments import create_histogram
from dart_streams.telemetry.spans import ROOT, ActiveSpan

exporters.COLLECTOR_TIMEOUT_S = int(sys.argv[2])
setup.start(config.load(Path(sys.argv[1])), "rollout-3")
pause = create_histogram(metrics.get_meter(names.METER), names.ROLLOUT_SWITCH_PAUSE_MS)
for number in range(50):
    pause.record(number)
    with ActiveSpan(names.SPAN_SWITCH, parent=ROOT):
        pass
setup.stop()
print("worked to its end")
"""


def work(folder: Path, endpoint: str, answers_within_s: int, **variables: str) -> subprocess.CompletedProcess[str]:
    """Let a process of its own measure and trace, with this collector."""
    tables = {"run": {"id": "r", "state_dir": str(folder)}, "telemetry": {"sampling": 1.0, "otlp_endpoint": endpoint}}
    path = folder / "config.toml"
    path.write_text(tomli_w.dumps(tables))
    return subprocess.run(
        [sys.executable, "-c", PROCESS, str(path), str(answers_within_s)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "NO_PROXY": "127.0.0.1", **variables},
    )


def test_a_process_sends_both_and_keeps_both_in_its_folder(receiver: Receiver, tmp_path: Path):
    done = work(tmp_path, f"http://127.0.0.1:{receiver.port}", BOUND_S)
    assert (done.returncode, done.stdout) == (0, "worked to its end\n"), done.stderr
    described = {
        "service.name": "dart_streams.rollout",
        "service.instance.id": "rollout-3",
        "service.version": VERSION,
        "dart.run.id": "dart",
        "host.name": socket.gethostname(),
    }
    resources = [resource for resource, _ in receiver.spans()] + receiver.resources()
    assert all(described.items() <= resource.items() for resource in resources)
    assert [span.name for _, span in receiver.spans()] == [names.SPAN_SWITCH] * 50
    metric = receiver.metrics()[names.ROLLOUT_SWITCH_PAUSE_MS]
    assert (metric.unit, metric.description) == ("ms", BY_NAME[names.ROLLOUT_SWITCH_PAUSE_MS].meaning)
    pauses = metric.histogram.data_points[0]
    assert (pauses.count, pauses.sum) == (50, sum(range(50)))
    in_buckets = dict(zip([*pauses.explicit_bounds, None], pauses.bucket_counts, strict=True))
    assert [in_buckets[bound] for bound in (0, 1, 2.5, 5, 10, 25, 50)] == [1, 1, 1, 3, 5, 15, 24]
    assert pauses.explicit_bounds[-1] == 1_800_000
    here = Timeline(lines_in(tmp_path / "runs" / "r" / "traces"))
    assert {int(one.trace, 16) for one in here.by_id.values()} == {ids(span).trace_id for _, span in receiver.spans()}


@pytest.mark.parametrize("how", ["refuses", "never answers"])
def test_a_process_works_to_its_end_whatever_the_collector_does(tmp_path: Path, how: str):
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        if how == "never answers":
            listening.listen()
        done = work(tmp_path, f"http://127.0.0.1:{listening.getsockname()[1]}", 1)
    assert (done.returncode, done.stdout) == (0, "worked to its end\n"), done.stderr
    assert done.stderr.count("spans are dropped") == 1
    assert len(Timeline(lines_in(tmp_path / "runs" / "r" / "traces")).by_id) == 50
    metrics = (tmp_path / "runs" / "r" / "metrics" / "rollout-3.jsonl").read_text()
    assert names.ROLLOUT_SWITCH_PAUSE_MS in metrics
    assert f'"{names.SPANS_DROPPED}"' in metrics.splitlines()[-1]


@pytest.mark.parametrize("token", ["Bearer%20a%2Cb", "Bearer a%2Cb"])
def test_headers_of_the_environment_open_a_collector(tmp_path: Path, token: str):
    """By the specification values are URL encoded; a value with a plain space is sent as it is."""
    sent = "Bearer a,b" if "%20" in token else token
    receiver = Receiver(headers={"Authorization": sent, "X-Scope-OrgID": "team-1"})
    try:
        endpoint = f"http://127.0.0.1:{receiver.port}"
        done = work(
            tmp_path, endpoint, BOUND_S, OTEL_EXPORTER_OTLP_HEADERS=f"Authorization={token},x-scope-orgid=team-1"
        )
        assert (done.returncode, done.stderr.count("spans are dropped")) == (0, 0), done.stderr
        assert len(receiver.spans()) == 50
        assert names.ROLLOUT_SWITCH_PAUSE_MS in receiver.metrics()
        assert receiver.refused == 0
        assert token not in done.stderr
    finally:
        receiver.stop()


def test_a_collector_that_wants_a_token_gets_nothing_without(tmp_path: Path):
    receiver = Receiver(headers={"Authorization": "Bearer a"})
    try:
        done = work(tmp_path, f"http://127.0.0.1:{receiver.port}", BOUND_S)
        assert (done.returncode, done.stderr.count("spans are dropped")) == (0, 1), done.stderr
        assert receiver.refused >= 2
        assert (receiver.spans(), receiver.metrics()) == ([], {})
    finally:
        receiver.stop()
