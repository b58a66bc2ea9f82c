"""A silent run names the process that waits for a service, and the service's fault, by the process's log."""

import io
import sys
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from console.launch.processes import ProcessSet
from console.launch.service_waits import ServiceWait, describe_waits, newest_wait
from console.launch.services.daemon import free_port
from console.launch.session import Session
from console.launch.supervisor import ProcessSpec
from console.launch.training_run import EchoLogger
from dart_streams.telemetry.stall_detector import StallDetector
from tests.unit.console.launch.test_session import folder_in, nothing
from tests.unit.console.launch.test_supervisor import supervised, until

NOON_S = 1_795_780_800.0
AWAY = "waiting for the weight store"


def line(event: str, **fields: object) -> str:
    said = {"event": event, "level": "warning", "process": "trainer", "timestamp": "2026-11-27T12:00:00.000000Z"}
    return msgspec.json.encode(said | fields).decode()


@pytest.mark.parametrize(
    ("lines", "service"),
    [
        ([line(AWAY, reason="refused", version=3, left_s=290)], "weight store"),
        ([line(AWAY, reason="refused", left_s=290), line("waiting", waits_for="curated", silent_s=9)], "weight store"),
        ([line("waiting for the checkpoint store", reason="refused", at_most_s=90.5)], "checkpoint store"),
        ([line(AWAY, reason="refused", left_s=20)], None),
        ([line("waiting", waits_for="records of curated", silent_s=11.4)], None),
        (["Traceback (most recent call last):", "{", '{"event": 3}'], None),
        ([], None),
    ],
    ids=["weights", "not its last line", "checkpoints", "over", "records", "other text", "silent"],
)
def test_a_wait_for_a_service_is_read_from_a_log(lines: list[str], service: str | None) -> None:
    wait = newest_wait("trainer", lines, NOON_S - 60, NOON_S + 30)
    assert wait == (ServiceWait("trainer", service, "refused") if service else None)


def test_waits_for_one_service_are_named_together_until_they_are_over() -> None:
    waits = [ServiceWait("env-0", "a", "x"), ServiceWait("trainer", "b", "y"), ServiceWait("env-1", "a", "x")]
    assert describe_waits(waits) == "env-0, env-1 waiting for the a (x); trainer waiting for the b (y)"
    assert describe_waits([]) == ""
    assert newest_wait("trainer", [line(AWAY, reason="refused", left_s=290)], NOON_S + 1, NOON_S + 30) is None


READS = """
from dart_streams.store import objects
from dart_streams.telemetry.setup import start_logs
start_logs("env-0")
objects.TRY_S = 60.0
objects.BlobObjects("s3://pictures/run", 600.0).get("0" * 64)
"""
"""A process whose screenshots are in an object store."""


async def test_a_run_without_its_object_store_names_who_waits_for_it(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_ENDPOINT_URL": url, "AWS_REGION": "us-east-1"}
    spec = ProcessSpec("env-0", (sys.executable, "-c", READS), environment=keys)
    folder, shown, now = folder_in(tmp_path), io.StringIO(), 0.0
    async with supervised(folder.path, spec) as supervisor:
        run = Session(folder, ProcessSet(), nothing, Console(file=shown, width=1000)).make_run(supervisor)
        await until(lambda: run.describe_silence(600.0))
        waiting = StallDetector(
            EchoLogger(run.log, run.notify, run.describe_silence),
            "training to end (rollout-orders silent for 20 s: newer input on curated for curator (dispatch))",
            10,
            lambda: now,
        )
        now = 600.0
        waiting.check()
    [said] = shown.getvalue().splitlines()
    assert said.startswith("env-0 waiting for the object store of screenshots (")
    assert url in said and said.endswith("no record for 600 s")
    assert "curator" not in said
