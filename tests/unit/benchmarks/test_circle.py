"""Coupled against decoupled with real parts: what differs between the modes, and whose CPU time is whose."""

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from benchmarks import circle, modes
from console.runs import process_usage as usage
from console.runs.process_usage import ProcessUsage
from dart_streams.config import Config
from dart_streams.deadline import Deadline

CONFIGS = Path(__file__).parents[3] / "deploy/config"
BASE = modes.load_config(CONFIGS / "demo.toml")


def without_dispatch(config: Config) -> Config:
    curation = msgspec.structs.replace(config.curation, dispatch=BASE.curation.dispatch)
    return msgspec.structs.replace(config, curation=curation, rollout=BASE.rollout)


def test_the_modes_differ_in_who_waits_for_whom_and_in_nothing_else():
    coupled, dart = (circle.circle_config(BASE, mode, 3) for mode in circle.COMPARED)
    assert (coupled.curation.dispatch.mode, dart.curation.dispatch.mode) == ("coupled", "rollout-wise")
    assert coupled.rollout.roll_width == BASE.rollout.workers
    assert dart.rollout == BASE.rollout
    assert without_dispatch(coupled) == without_dispatch(dart) == without_dispatch(BASE)


def test_a_mode_trains_for_its_minutes_by_the_bounds_of_its_workload():
    run = circle.limit_run(BASE, 5.0).run
    assert (run.minutes, run.demonstrate) == (5.0, False)
    config = circle.limit_run(modes.load_config(CONFIGS / "workload/pages/pages.toml"), 2.0)
    assert (config.run.minutes, config.run.demonstrate, config.evaluation.episodes) == (2.0, False, 0)
    assert config.env.episode_timeout_s > 60.0


def test_browser_and_engine_are_counted_apart_from_our_processes():
    samples = [
        ProcessUsage(at_ms, process, second * cpu, 1.0, second * own, second * loop)
        for second, at_ms in ((1, 1000), (11, 11_000))
        for process, cpu, own, loop in (
            ("env-0", 0.5, 0.1, 0.05),
            ("rollout-0", 0.4, 0.4, 0.01),
            ("rollout-1", 0.4, 0.4, 0.03),
            ("trainer", 0.3, 0.3, 0.3),
            ("kafka", 0.2, 0.2, 0.0),
        )
    ]
    found = circle.step_costs(samples, 1000, 11_000, steps=100)
    costs = {"browser": 40.0, "engine": 76.0, "env": 10.0, "kafka": 20.0, "rollout": 4.0, "trainer": 30.0}
    assert found["core_ms_per_step"] == costs
    assert found["ours"] == pytest.approx(34.0)
    assert found["all"] == pytest.approx(180.0)
    assert sum(found["share"].values()) == pytest.approx(1.0, abs=0.01)
    assert found["cores"] == pytest.approx(1.8)


def test_a_process_knows_what_its_main_thread_has_cost():
    sum(number * number for number in range(400_000))
    found = usage.own_usage(psutil.Process().pid)
    assert 0 < found["loop_s"] <= found["own_s"] + 0.02
    assert usage.own_usage(2**22 + 1) == {}


def test_a_worker_is_below_its_subreaper_and_a_browser_below_the_worker():
    """A shell as the subreaper, a program below it as the worker, and what that waits for."""
    worker = """
import subprocess, time
while time.process_time() < 0.1: pass
waited_for = subprocess.Popen(["sleep", "600"])
print("ready", flush=True)
waited_for.wait()
"""
    shell = ["sh", "-c", '"$1" -c "$2" & wait', "subreaper", sys.executable, worker]
    subreaper = subprocess.Popen(shell, stdout=subprocess.PIPE)
    try:
        assert subreaper.stdout.readline() == b"ready\n"
        process, deadline = psutil.Process(subreaper.pid).children()[0], Deadline(60)
        while process.status() != psutil.STATUS_SLEEPING:  # else its times go on between two looks at them
            assert not deadline.expired
            time.sleep(0.01)
        children = usage.children_by_pid()
        below = list(usage.process_tree(subreaper.pid, children))
        assert len(below) == 3
        found = usage.measure("env-0", subreaper.pid, children)
        assert 0 < found["own_s"] <= found["cpu_s"] + 0.011
        assert found["own_s"] == usage.own_usage(below[1])["own_s"]
    finally:
        for pid in reversed(list(usage.process_tree(subreaper.pid, usage.children_by_pid()))):
            with contextlib.suppress(psutil.NoSuchProcess):  # its child was all that it waited for
                psutil.Process(pid).kill()
        subreaper.wait()
