"""Slots at the pace of desktops: how fast a deployment is made to be, and what its metrics say."""

import json
from pathlib import Path

import pytest

from benchmarks import modes, slots
from console.runs.metrics_reader import MetricsReader
from console.runs.process_usage import ProcessUsage
from dart_streams.config import tasks as task_sets
from dart_streams.telemetry import names

BASE = modes.load_workload(Path(__file__).parents[3] / "deploy/config/workload/desktop.toml")
TASKS = task_sets.load(Path(BASE.tasks.file))


@pytest.mark.parametrize("count", [1, 250, 251, 1000])
def test_there_are_as_many_slots_as_asked_for_and_no_worker_has_too_many(count: int):
    env = slots.pace_config(BASE, TASKS, count, 3.0).env
    assert count <= env.workers * env.slots < count + env.workers
    assert env.slots <= slots.SLOTS_A_WORKER


def test_a_slot_takes_a_step_in_the_time_it_is_given():
    """By the workload's own means: an episode of about 22 steps lasts about 170 s, hangs left out."""
    at_three, at_six = (slots.pace_config(BASE, TASKS, 100, pace_s).workload.time_scale for pace_s in (3.0, 6.0))
    assert at_three == pytest.approx(2 * at_six)
    assert 2.3 < at_three < 3.2


def test_figures_are_those_of_the_span_and_of_kinds_of_processes(tmp_path: Path):
    def line(process: str, at_ms: int, name: str, value: float, **attributes: str) -> str:
        point = {"name": name, "attributes": attributes, "start_ms": 0, "at_ms": at_ms, "value": value}
        return json.dumps({"process": process, "points": [point]}) + "\n"

    written = [
        line(process, at_ms, names.ENV_STEPS, steps)
        for process, counted in (("env-0", (10, 40, 90)), ("env-1", (5, 25, 65)))
        for at_ms, steps in zip((1000, 2000, 11_000), counted, strict=True)
    ]
    written += [
        line("monitor", at_ms, names.MONITOR_LAG, lag, group="env", topic="actions")
        for at_ms, lag in ((1000, 900), (5000, 7), (9000, 3))
    ]
    (tmp_path / "all.jsonl").write_text("".join(written))
    usage = [
        ProcessUsage(at_ms, process, cpu_s, 100.0)
        for process in ("env-0", "env-1")
        for at_ms, cpu_s in ((1000, 9), (2000, 10), (11_000, 12))
    ]
    stolen = ((1000, 2.0), (2000, 5.0), (11_000, 5.9))
    usage += [ProcessUsage(at_ms, "supervisor", 0.0, 1.0, stolen_s=stolen_s) for at_ms, stolen_s in stolen]
    found = slots.slot_metrics(50, 3.0, (2000, 11_000), MetricsReader(tmp_path), usage)
    assert found["steps_per_s"] == 10.0
    assert found["lag_max"] == {"env actions": 7}
    assert found["core_ms_per_step"] == {"env": 44.44, "supervisor": 0.0}
    assert found["stolen_cores"] == 0.1
    assert found["cores"] == 0.44
    assert found["env_mb_per_slot"] == 4.0
    assert found["overhead_ms"] == {"p50": None, "p99": None}
    assert "10.0 of 16.7" in slots.table_rows([found])[0].steps_per_s
