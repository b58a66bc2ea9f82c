"""Log lines are JSON with the ids of what they belong to; on a terminal they are for people. Libraries' lines too."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dart_streams.telemetry import spans
from dart_streams.telemetry.log_stream import LogStream
from tests.sources import ROOT

PROGRAM = """
import logging
import structlog
from dart_streams.telemetry import names, setup, spans
setup.start_logs("env-0")
spans.enable(0.0, spans.Provider(0.0))
log = structlog.get_logger()
log.info("outside", count=2)
bound = structlog.contextvars.bound_contextvars(trajectory="t1")
with bound, spans.ActiveSpan(names.SPAN_TRAJECTORY, ids=spans.trajectory_span("t1"), parent=spans.ROOT):
    log.warning("episode failed", why="no page")
    logging.getLogger("aiokafka").warning("Heartbeat failed for group %s", "env")
    try:
        1 / 0
    except ZeroDivisionError:
        log.exception("broken")
"""


def logged(stderr: int) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], stderr=stderr, cwd=ROOT, check=False)
    assert done.returncode == 0


def test_into_a_file_a_line_is_json_and_names_process_trajectory_and_trace(tmp_path: Path):
    with (tmp_path / "log").open("w") as file:
        logged(file.fileno())
    outside, failed, library, broken = map(json.loads, (tmp_path / "log").read_text().splitlines())
    trace = f"{spans.trajectory_span('t1').trace_id:032x}"
    assert {"trace", "trajectory"}.isdisjoint(outside)
    assert (outside["event"], outside["count"], outside["level"], outside["process"]) == ("outside", 2, "info", "env-0")
    for line in (failed, library, broken):
        assert (line["trajectory"], line["trace"], line["process"]) == ("t1", trace, "env-0")
    assert (failed["level"], failed["why"]) == ("warning", "no page")
    assert library["event"] == "Heartbeat failed for group env"
    assert "ZeroDivisionError" in broken["exception"]
    assert all(line["timestamp"].endswith("Z") for line in (outside, failed, library, broken))


def test_on_a_terminal_a_line_is_for_people():
    reader, terminal = os.openpty()
    logged(terminal)
    os.close(terminal)
    shown = b""
    try:
        while part := os.read(reader, 65536):
            shown += part
    except OSError:  # Linux says so at the end of a terminal that nobody holds any more
        pass
    finally:
        os.close(reader)
    lines = shown.decode().splitlines()
    assert "episode failed" in lines[1]
    assert "t1" in lines[1]
    for line in lines:
        with pytest.raises(json.JSONDecodeError):
            json.loads(line)


def test_a_process_whose_log_is_on_a_full_disk_goes_on():
    with Path("/dev/full").open("w") as full:
        logged(full.fileno())


def test_lines_that_were_dropped_are_counted_also_of_a_closed_stream(tmp_path: Path):
    with Path("/dev/full").open("w") as full, (tmp_path / "log").open("w") as file:
        stream = LogStream(full)
        stream.write("one\n")
        stream.write("two\n")
        os.dup2(file.fileno(), full.fileno())
        stream.write("three\n")
        stream.write("four\n")
    notice, *last = (tmp_path / "log").read_text().splitlines()[-3:]
    assert last == ["three", "four"]
    assert json.loads(notice)["lines"] == 2
    assert "No space left" in json.loads(notice)["reason"]
    with (tmp_path / "log").open("w") as file:
        stream = LogStream(file)
        stream.write("one\n")
    stream.write("two\n")
    assert (tmp_path / "log").read_text() == "one\n"
    assert stream.dropped == 1
    assert "closed" in stream.reason
