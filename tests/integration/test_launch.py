"""Scripts of ``dart-streams launch`` run a whole circle on real services, and leave no process behind."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from dart_streams.config import Config
from dart_streams.config import hardware as hardware_tables
from dart_streams.console.launch import launch_plan, processes
from dart_streams.console.launch.launch_plan import LaunchPlan, plan_launch, write_scripts
from dart_streams.console.launch.node_scripts import node_scripts
from dart_streams.console.launch.slurm_scripts import slurm_scripts
from tests.integration import model_program, slurm_cluster
from tests.integration.test_circle import HERE, circle_config
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(600)
STEPS = 2
BOUND_S = 240.0
KEYS = frozenset({"rollout.workers"})


def plan_circle(services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: str, **tables) -> LaunchPlan:
    """Return the plan of the circle on three GPUs, with stand-ins for the model environment's programs."""
    programs = model_program.write_programs(tmp_path)
    monkeypatch.setattr(processes, "find_programs", lambda: programs)
    base = circle_config(services, tmp_path / "state", episodes=8)
    replace = msgspec.structs.replace
    model = tmp_path / "model"
    (model / "config.json").write_text("{}")
    config: Config = replace(
        base,
        rollout=replace(base.rollout, engine="vllm"),
        trainer=replace(base.trainer, max_train_steps=STEPS),
        policy=replace(base.policy, path=str(model)),
        tasks=replace(base.tasks, file=str(HERE / "circle-tasks.toml")),
        hardware=hardware_tables.Hardware(gpus=3),
        **tables,
    )
    return plan_launch(config, KEYS, tmp_path / "launch", f"{run}-{services.keyspace}", gpus=None, gib=80.0)


def started(plan: LaunchPlan) -> dict[str, psutil.Process]:
    """Return the live processes of a deployment by name: those that have its configuration on their command line."""
    found = {}
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        is_starter = any(word.endswith(("subreaper.py", "slurm_cluster.py", ".keeper")) for word in words)
        if str(plan.config_file) in words and not is_starter:
            at = words.index(str(plan.config_file))
            found[words[-1] if words[-2] == "--id" else words[at - 1 if words[at - 1] == "run" else at - 2]] = process
    return found


def devices(process: psutil.Process) -> str | None:
    return process.environ().get("CUDA_VISIBLE_DEVICES")


@pytest.fixture
def local(services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LaunchPlan:
    plan = plan_circle(services, tmp_path, monkeypatch, "local")
    write_scripts(plan, node_scripts(plan))
    return plan


@contextlib.contextmanager
def run_script(plan: LaunchPlan) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the script of node 0, which is killed with its processes if the test fails."""
    with plan.config_file.with_name("node-0.log").open("w") as log:
        script = subprocess.Popen(["bash", str(plan.config_file.with_name("node-0.sh"))], stdout=log, stderr=log)
    try:
        yield script
    finally:
        script.kill()
        script.wait()


def test_a_node_script_trains_and_ends(local: LaunchPlan):
    with run_script(local) as script:
        assert script.wait(BOUND_S) == 0, local.config_file.with_name("node-0.log").read_text()
        report = json.loads((local.run.path / "report.json").read_text())
        assert (report["outcome"], report["train_steps"], report["lost"]) == ("complete", STEPS, 0)
        assert started(local) == {}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_node_script_that_is_ended_leaves_no_process(local: LaunchPlan, number: signal.Signals, code: int):
    with run_script(local) as script:
        wanted = {"recorder-0", "monitor-0", "env-0", "rollout-0", "rollout-1", "train"}
        wait_until(lambda: wanted <= started(local).keys() or script.poll() is not None, "the processes")
        live = started(local)
        assert {name: devices(live[name]) for name in sorted(wanted)} == {
            "env-0": "", "monitor-0": "", "recorder-0": "", "rollout-0": "0", "rollout-1": "1", "train": "2",
        }  # fmt: skip
        live["env-0"].kill()
        again = wait_until(lambda: (now := started(local).get("env-0")) and now.pid != live["env-0"].pid and now)
        assert again
        script.send_signal(number)
        assert script.wait(BOUND_S) == code
        wait_until(lambda: not started(local), "the end of all processes")


def test_a_process_that_the_user_must_correct_ends_the_script(local: LaunchPlan):
    program = local.programs.model
    program.write_text("#!/bin/sh\necho error: no such model; exit 2\n")
    with run_script(local) as script:
        assert script.wait(BOUND_S) == 1
        said = local.config_file.with_name("node-0.log").read_text()
        assert "ended with exit code 2, and does not start again" in said
        assert "error: no such model" in said
        assert started(local) == {}


def test_batch_scripts_train_and_end_with_the_control_job(services, tmp_path, monkeypatch):
    plan = plan_circle(services, tmp_path, monkeypatch, "slurm")
    monkeypatch.setattr(launch_plan.local, "is_own", lambda servers: False)
    write_scripts(plan, slurm_scripts(plan))
    place = slurm_cluster.write_commands(tmp_path / "cluster")
    folder = plan.config_file.parent
    environ = {**os.environ, "PATH": f"{place}:{os.environ['PATH']}"}
    submitted = subprocess.run(
        ["bash", folder / "submit.sh"], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert submitted.returncode == 0, submitted.stderr
    names = [line.split()[0] for line in submitted.stdout.splitlines()]
    assert names == ["control", "env", "rollout", "trainer"]
    jobs = slurm_cluster.read_jobs(tmp_path / "cluster")
    assert len(jobs) == 1 + plan.config.env.workers + 2 + 1
    try:
        wait_until(lambda: "train" in started(plan), "the trainer")
        live = started(plan)
        assert devices(live["train"]) == "0", "Slurm's own, of a job with one GPU"
        wait_until(lambda: (plan.run.path / "report.json").exists(), "the report", BOUND_S)
        wait_until(lambda: not started(plan), "the end of all jobs")
    finally:
        for _, pid in jobs:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        logs = "".join(path.read_text() for path in folder.glob("*.log"))
    report = json.loads((plan.run.path / "report.json").read_text())
    assert (report["outcome"], report["train_steps"]) == ("complete", STEPS), logs
