"""When a process counts as hung, and when as ready."""

import contextlib
import socket
import threading
import urllib.error
import urllib.request

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_streams.errors import ConfigError, ServiceUnavailable
from dart_streams.telemetry.health_server import PORT, answering_probes, health_port
from dart_streams.telemetry.process_health import START_BOUND_S, STARTING, ProcessHealth
from tests.unit.clockwork import SetClock


def ask(port: int | None, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode().strip()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode().strip()


@given(bound_s=st.floats(1.0, 1000.0), silent_s=st.floats(0.0, 10_000.0))
def test_a_started_loop_is_hung_beyond_its_bound_only(bound_s: float, silent_s: float):
    clock = SetClock()
    health = ProcessHealth(bound_s, clock)
    health.note_turn()
    clock.now_s += silent_s
    hung = clock.now_s - 100.0 > bound_s
    assert bool(health.find_hang()) is hung
    assert bool(health.find_lack()) is hung


def test_a_start_may_take_longer_than_a_turn_but_not_for_ever():
    clock = SetClock()
    health = ProcessHealth(1.0, clock)
    clock.now_s += START_BOUND_S
    assert not health.find_hang()
    clock.now_s += 1.0
    assert health.find_hang() == "it has not started for 1801 s, and the bound is 1800 s"


def test_what_a_process_lacks_counts_from_turn_to_turn():
    health = ProcessHealth(60.0)
    health.note_turn("no partition")
    assert health.find_lack() == "no partition"
    health.note_turn()
    assert not health.find_lack()


def test_the_endpoints_answer_with_the_reason():
    clock = SetClock()
    health = ProcessHealth(60.0, clock)
    with answering_probes(health, {PORT: "0"}) as port:
        assert ask(port, "/livez") == (200, "ok")
        assert ask(port, "/readyz") == (503, STARTING)
        health.note_turn()
        assert ask(port, "/readyz") == (200, "ok")
        clock.now_s += 61.0
        assert ask(port, "/livez") == (503, "its loop has not turned for 61 s, and the bound is 60 s")
        assert ask(port, "/readyz")[0] == 503
        assert ask(port, "/secrets")[0] == 404


@pytest.mark.parametrize(("pod", "address"), [({}, "127.0.0.1"), ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "0.0.0.0")])
def test_connections_that_ask_nothing_take_no_threads_and_stop_no_probe(pod: dict[str, str], address: str):
    with answering_probes(ProcessHealth(60.0), {PORT: "0", **pod}) as port, contextlib.ExitStack() as opened:
        assert ask(port, "/livez") == (200, "ok")
        before = threading.active_count()
        for _ in range(100):
            opened.enter_context(socket.create_connection(("127.0.0.1", port), 60))
        assert ask(port, "/livez") == (200, "ok")
        assert threading.active_count() <= before
        listening = [one.laddr.ip for one in psutil.Process().net_connections() if one.status == "LISTEN"]
        assert address in listening


def test_without_the_variable_nothing_listens_and_a_taken_port_is_named():
    with answering_probes(ProcessHealth(60.0), {}) as port:
        assert port is None
    with answering_probes(ProcessHealth(60.0), {PORT: "0"}) as port:
        taken = answering_probes(ProcessHealth(60.0), {PORT: str(port)})
        with pytest.raises(ServiceUnavailable, match="give each process of a machine its own"), taken:
            pass


@pytest.mark.parametrize("text", ["eighty", "-1", "65536", "80.5"])
def test_a_value_that_is_no_port_is_refused(text: str):
    with pytest.raises(ConfigError, match=PORT):
        health_port({PORT: text})
