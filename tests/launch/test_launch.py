"""Scripts of ``dart-streams launch`` run a whole circle on real services, and leave no process behind."""

import asyncio
import contextlib
import io
import json
import os
import signal
import subprocess
from pathlib import Path

import msgspec
import psutil
import pytest
from rich.console import Console

import topics
from console.launch import launch_plan, processes
from console.launch.launch_plan import LaunchPlan, plan_launch, write_scripts
from console.launch.node_scripts import node_scripts
from console.launch.slurm_scripts import slurm_scripts
from console.launch.supervisor import ProcessSpec
from console.runs import run_folder
from console.runs.run_log import read_log
from console.runs.run_state import RunState
from dart_streams.config import Config, Curation
from dart_streams.config import hardware as hardware_tables
from dart_streams.config.curation import Pool
from dart_streams.errors import ServiceUnavailable
from tests.integration import model_program, slurm_cluster
from tests.integration.test_circle import HERE, circle_config, session_of
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(1800)
STEPS = 3
BOUND_S = 600.0
KEYS = frozenset({"rollout.workers"})
GUIDED = Curation(max_staleness=2, pool=Pool(enabled=False))
"""Curation of a run whose rollouts are guided."""


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
        is_starter = any(word.endswith(("subreaper.py", "slurm_cluster.py", "/srun", ".keeper")) for word in words)
        if str(plan.config_file) in words and not is_starter:
            at = words.index(str(plan.config_file))
            found[words[-1] if words[-2] == "--id" else words[at - 1 if words[at - 1] == "run" else at - 2]] = process
    return found


@pytest.fixture(scope="module")
def trained(services, tmp_path_factory) -> LaunchPlan:
    """A deployment that the script of node 0 has run to its end, with rollouts guided by demonstrations."""
    place = tmp_path_factory.mktemp("local")
    with pytest.MonkeyPatch.context() as patch:
        plan = plan_circle(services, place, patch, "local", recipe=("ui-s1",), curation=GUIDED)
    write_scripts(plan, node_scripts(plan))
    log = plan.config_file.with_name("node-0.log")
    with log.open("w") as said:
        script = subprocess.Popen(["bash", str(plan.config_file.with_name("node-0.sh"))], stdout=said, stderr=said)
    try:
        assert script.wait(BOUND_S) == 0, log.read_text()
    finally:
        script.kill()
        script.wait()
    return plan


def test_a_node_script_trains_and_ends(trained: LaunchPlan):
    report = json.loads((trained.run.path / "report.json").read_text())
    assert (report["outcome"], report["train_steps"], report["lost"]) == ("complete", STEPS, 0)
    assert started(trained) == {}


def test_a_run_of_others_processes_is_measured_before_and_after(trained: LaunchPlan):
    assert trained.run.journal().before_version == 0
    measured = json.loads((trained.run.path / "report.json").read_text())["evaluation"]
    assert {when: measured[when]["version"] for when in ("before", "after")} == {"before": 0, "after": STEPS}


def test_rollouts_are_patched_along_demonstrations(trained: LaunchPlan):
    state = RunState().fold(read_log(trained.run.config().bus, topics.ALL))
    finished = {trajectory.trajectory_id: trajectory for trajectory in state.finished.values()}
    shown = {one.trajectory_id for one in finished.values() if one.purpose == "demonstration"}
    orders = [order for order, _ in state.orders.values() if order.purpose == "train"]
    assert len(shown) == 24, "a demonstration of each training task, without a pool"
    assert {order.guide.trajectory_id for order in orders if order.guide is not None} <= shown
    played = [one for one in finished.values() if one.purpose == "train"]
    early = {one.group_id for one in played if not one.guided}
    assert early < {f"g{number:06d}" for number in range(10)}, "ordered before dispatch had read of demonstrations"
    assert len({one.group_id for one in played}) > 10
    assert any(one.recorded_steps and one.outcome == "success" for one in played), "a patch leads on to the end"
    members = [member for group, _ in state.groups.values() for member in group.members]
    assert members, "and a patched step is never trained on"
    assert not any(set(one.selected) & set(finished[one.trajectory_id].recorded_steps) for one in members)


def test_batch_scripts_train_and_end_with_the_control_job(services, tmp_path, monkeypatch):
    plan = plan_circle(services, tmp_path, monkeypatch, "slurm")
    monkeypatch.setattr(launch_plan.local, "is_own", lambda servers: False)
    write_scripts(plan, slurm_scripts(plan))
    place = slurm_cluster.write_commands(tmp_path / "cluster")
    folder = plan.config_file.parent
    environ = {**os.environ, "PATH": f"{place}:{os.environ['PATH']}"}
    submitted = subprocess.run(
        ["bash", folder / "submit.sh"], env=environ, capture_output=True, text=True, timeout=BOUND_S, check=False
    )
    assert submitted.returncode == 0, submitted.stderr
    names = [line.split()[0] for line in submitted.stdout.splitlines()]
    assert names == ["control", "env", "rollout", "trainer"]
    jobs = slurm_cluster.read_jobs(tmp_path / "cluster")
    assert len(jobs) == 1 + plan.config.env.workers + 2 + 1
    try:
        trainer = wait_until(lambda: started(plan).get("train"), "the trainer", BOUND_S)
        assert trainer.environ()["CUDA_VISIBLE_DEVICES"] == "0", "Slurm's own, of a job with one GPU"
        wait_until(lambda: (plan.run.path / "report.json").exists(), "the report", BOUND_S)
        wait_until(lambda: not started(plan), "the end of all jobs", BOUND_S)
    finally:
        for _, pid in jobs:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        logs = "".join(path.read_text() for path in folder.glob("*.log"))
    report = json.loads((plan.run.path / "report.json").read_text())
    assert (report["outcome"], report["train_steps"]) == ("complete", STEPS), logs


def test_a_run_whose_weights_are_not_served_in_time_names_the_key(services, tmp_path):
    config = circle_config(services, tmp_path, demonstrate=False)
    vllm = msgspec.structs.replace(config.rollout.vllm, start_s=0.01)
    config = msgspec.structs.replace(config, rollout=msgspec.structs.replace(config.rollout, vllm=vllm))
    made = run_folder.create(config, HERE / "circle-tasks.toml", run_folder.new_id(), resume=False)
    session = session_of(made, Console(file=io.StringIO(), width=160))
    session.processes = processes.ProcessSet(rollout=(ProcessSpec("rollout-0", ("sleep", "600")),))
    with pytest.raises(ServiceUnavailable, match=r"every rollout worker.*raise rollout\.vllm\.start_s"):
        asyncio.run(session.run())
