"""Workers whose broker or database is not up: each waits for it, all at once, and names it."""

import contextlib
from pathlib import Path
from typing import Any

import msgspec

from console.launch.services.daemon import free_port
from tests.task_files import write_tasks
from tests.worker_runs import BOUND_S, worker_process

WAIT_S = 2.0
MISSING = (
    ("env", "broker"),
    ("env", "database"),
    ("recorder", "broker"),
    ("recorder", "database"),
    ("rollout", "broker"),
    ("curator", "broker"),
)


def test_a_missing_service_is_awaited_and_then_named(services: Any, tmp_path: Path):
    config = services.config(
        tasks=write_tasks(tmp_path, "box"), env={"backend": "simulated"}, rollout={"engine": "scripted"}
    )
    replace, port = msgspec.structs.replace, free_port()
    lacking = {
        "broker": replace(config, bus=replace(config.bus, servers=f"127.0.0.1:{port}", wait_s=WAIT_S)),
        "database": replace(config, store=replace(config.store, port=port, wait_s=WAIT_S)),
    }
    with contextlib.ExitStack() as started:
        waiting = {}
        for kind, service in MISSING:
            folder = tmp_path / f"{kind}-{service}"
            folder.mkdir()
            waiting[kind, service] = started.enter_context(worker_process(kind, lacking[service], folder))
        for (kind, service), process in waiting.items():
            _, errors = process.communicate(timeout=BOUND_S)
            assert process.returncode == 3, (kind, service, errors)
            for said in (f"waiting for the {service}", f"{port}", "dart-streams up"):
                assert said in errors, (kind, service, errors)
            assert "Traceback" not in errors
