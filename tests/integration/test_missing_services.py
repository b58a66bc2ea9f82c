"""Workers whose broker or database is not up: each waits for it, and then names it."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dart_streams.console.launch.services.daemon import free_port
from tests.task_files import write_tasks
from tests.worker_runs import BOUND_S, worker_process

WAIT_S = 5.0
"""More than one try takes on a busy machine: it is after a first failure that a process names what it waits for."""


@pytest.mark.parametrize(
    ("kind", "service"),
    [
        ("env", "broker"),
        ("env", "database"),
        ("recorder", "broker"),
        ("recorder", "database"),
        ("rollout", "broker"),
        ("curator", "broker"),
    ],
)
def test_a_missing_service_is_awaited_and_then_named(services: Any, tmp_path: Path, kind: str, service: str):
    config = services.config(
        tasks=write_tasks(tmp_path, "box"), env={"backend": "simulated"}, rollout={"engine": "scripted"}
    )
    replace, port = msgspec.structs.replace, free_port()
    if service == "broker":
        config = replace(config, bus=replace(config.bus, servers=f"127.0.0.1:{port}", wait_s=WAIT_S))
    else:
        config = replace(config, store=replace(config.store, port=port, wait_s=WAIT_S))
    with worker_process(kind, config, tmp_path) as process:
        _, errors = process.communicate(timeout=BOUND_S)
    assert process.returncode == 3
    assert f"waiting for the {service}" in errors
    assert f"{port}" in errors
    assert "dart-streams up" in errors
    assert "Traceback" not in errors
