"""What a run says that it waits for, and the watch of an endpoint on real sockets."""

import asyncio

import pytest
import structlog

from console.launch import run_wait
from console.launch.run_wait import describe_wait, watch_endpoint
from console.launch.services.daemon import free_port
from console.launch.training_run import EchoLogger
from console.runs.run_state import RunState
from dart_streams.config import parse
from dart_streams.telemetry.stall_detector import StallDetector
from tests.events import rollout_order
from tests.unit.console.runs.test_run_state import fold, version

ENDPOINT = {"rollout": {"engine": "openai", "openai": {"base_url": "http://h/v1", "model": "m"}}, "run": {"minutes": 0}}


@pytest.mark.parametrize(
    ("tables", "phase", "state", "missing", "words"),
    [
        ({}, "start", RunState(), {"rollout-0"}, "waiting for the trainer to publish its first weights"),
        ({}, "start", fold(version(0)), {"rollout-1", "rollout-0"}, "starting vLLM in rollout-0, rollout-1"),
        ({"rollout": {"engine": "scripted"}}, "start", fold(version(0)), {"rollout-0"}, "starting rollout-0"),
        (ENDPOINT, "start", RunState(), {"rollout-0"}, "waiting for the endpoint's first answer in rollout-0"),
        ({}, "settle", fold(rollout_order("a")), (), "waiting for 1 training orders to finish"),
        ({}, "circle", RunState(), (), ""),
    ],
)
def test_a_wait_is_named_in_plain_words(tables, phase, state, missing, words):
    assert describe_wait(parse(tables), phase, state, missing, "") == words


def test_an_endpoint_without_an_answer_and_a_long_wait_are_named():
    said = describe_wait(parse(ENDPOINT), "circle", RunState(), (), "Connection refused")
    assert said == "http://h/v1 does not answer (Connection refused)"
    now, shown = 0.0, []
    log = EchoLogger(structlog.get_logger(), shown.append, lambda _: "starting vLLM in rollout-0")
    waiting = StallDetector(log, "every rollout worker to serve weights", 10, lambda: now)
    now = 20.0
    waiting.check()
    assert shown == ["starting vLLM in rollout-0: no record for 20 s"]


async def test_an_endpoint_that_goes_and_comes_is_noted_each_time_once(monkeypatch):
    monkeypatch.setattr(run_wait, "WATCH_INTERVAL_S", 0.01)
    monkeypatch.setattr(run_wait, "CONNECT_S", 60.0)
    port, changes = free_port(), asyncio.Queue()
    watch = asyncio.create_task(watch_endpoint(f"http://127.0.0.1:{port}/v1", changes.put_nowait))
    try:
        assert await asyncio.wait_for(changes.get(), 60) == "Connection refused"
        async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", port):
            assert await asyncio.wait_for(changes.get(), 60) == ""
        # A connection that waits to be accepted when the port closes is reset, which may be noted in between.
        if (after := await asyncio.wait_for(changes.get(), 60)) == "Connection reset by peer":
            after = await asyncio.wait_for(changes.get(), 60)
        assert after == "Connection refused" and changes.empty()
    finally:
        watch.cancel()
