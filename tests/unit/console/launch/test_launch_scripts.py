"""Scripts of ``dart-streams launch`` with a stand-in for every process: devices, restarts, ends, and refusals."""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from console.cli.options import CHECKOUT, read_config
from console.launch import processes
from console.launch.launch_plan import LaunchPlan, plan_launch, write_scripts
from console.launch.node_scripts import node_scripts
from console.launch.processes import Programs
from console.launch.slurm_scripts import slurm_scripts
from dart_streams.config import load
from dart_streams.config.files import set_keys
from dart_streams.errors import ConfigError
from tests.command_line import invoke
from tests.integration import slurm_cluster
from tests.waiting import wait_until

EIGHT = CHECKOUT / "deploy/config/ui-tars/eight-gpus.toml"
COMMIT = 40 * "0"
PROGRAM = """\
#!/bin/sh
# Notes command and devices in DIR; workers and the trainer go on until SIGTERM, runs until DIR/done--before or done.
echo "$$ ${CUDA_VISIBLE_DEVICES-unset} $*" >>"DIR/started"
case "$1$FAILS" in
    trainyes) echo "error: no such model"; exit 2 ;;
    worker* | train*) exec sleep 1000 ;;
    run*) while [ ! -e "DIR/done$4" ]; do sleep 0.1; done ;;
esac
"""


@pytest.fixture
def branch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the commit of UI-TARS in a cache of the hub."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    file = tmp_path / "hub/models--ByteDance-Seed--UI-TARS-1.5-7B/refs/main"
    file.parent.mkdir(parents=True)
    file.write_text(COMMIT)
    return file


@pytest.fixture
def file(tmp_path: Path, branch: Path) -> Path:
    """UI-TARS on eight GPUs with services elsewhere; its program notes what it is started with."""
    text = EIGHT.read_text().replace('"osworld-tasks.toml"', f'"{EIGHT.parents[1]}/desktop-tasks.toml"')
    text = text.replace("[bus]", '[bus]\nservers = "kafka.site:9092"').replace("minutes = 1440", "drain_s = 1.0")
    path = tmp_path / "c.toml"
    text = text.replace("[run]", f'[run]\nstate_dir = "{tmp_path}/state"')
    path.write_text(f'{text}\n[store]\nhosts = ["cassandra.site"]\n')
    return path


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "dart-streams"
    path.write_text(PROGRAM.replace("DIR", str(tmp_path)))
    path.chmod(0o755)
    monkeypatch.setattr(processes, "find_programs", lambda: Programs(path, path))
    return path


def plan_of(file: Path, gpus: int | None = 8, name: str = "") -> LaunchPlan:
    return plan_launch(read_config(file), set_keys(file), file.parent / "launch", name, gpus=gpus, gib=80.0)


def started(folder: Path) -> list[tuple[int, str, str]]:
    """Return pid, devices and command of each start."""
    lines = (folder / "started").read_text().splitlines() if (folder / "started").exists() else []
    rows = [line.split(" ", 2) for line in lines]
    return [(int(pid), devices, command) for pid, devices, command in rows]


def count(folder: Path, word: str) -> int:
    return sum(word in command for _, _, command in started(folder))


RUNNING: list["subprocess.Popen[str]"] = []


@pytest.fixture(autouse=True)
def scripts_end() -> Iterator[None]:
    """Kill the scripts of a failed test, whose processes then end too."""
    yield
    for script in RUNNING:
        script.kill()
        script.wait()
        script.stdout.close()
    RUNNING.clear()


def run_script(plan: LaunchPlan, scripts: dict[str, str], name: str, **environ: str) -> "subprocess.Popen[str]":
    write_scripts(plan, scripts)
    path = plan.config_file.with_name(name)
    script = subprocess.Popen(
        ["env", "--default-signal=INT", "bash", str(path)],  # tests in the background of a shell ignore Ctrl-C
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    RUNNING.append(script)
    return script


def all_ended(folder: Path) -> bool:
    return not any(psutil.pid_exists(pid) for pid, _, _ in started(folder))


def test_a_node_script_gives_each_process_its_devices_and_ends_all(file: Path, program: Path):
    plan, folder = plan_of(file), file.parent
    script = run_script(plan, node_scripts(plan), "node-0.sh")
    began = {"--before": 1, "worker": 10, "train --": 1}
    wait_until(lambda: {word: count(folder, word) for word in began} == began, "the processes")
    assert [command.split(" --config")[0] for _, _, command in started(folder)[:2]] == ["topics apply", "store apply"]
    assert count(folder, "curator") == 0, "it starts after the evaluation before training"
    found = {command.rpartition(" ")[2]: devices for _, devices, command in started(folder) if "worker" in command}
    assert {name: found[name] for name in found if name.startswith("rollout")} == {
        f"rollout-{number}": str(number) for number in range(4)
    }
    assert found["env-0"] == found["recorder-0"] == ""
    assert [devices for _, devices, command in started(folder) if command.startswith("train")] == ["4,5,6,7"]
    (folder / "done--before").touch()
    wait_until(lambda: count(folder, "curator") == 1, "the curator")
    (folder / "done").touch()
    assert script.wait(120) == 0, script.stdout.read()
    assert count(folder, "--attached") == 2
    assert all_ended(folder)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_an_ended_script_leaves_no_process(file: Path, program: Path, number: signal.Signals, code: int):
    plan, folder = plan_of(file), file.parent
    script = run_script(plan, node_scripts(plan), "node-0.sh")
    wait_until(lambda: count(folder, "--before") == 1 and count(folder, "train --") == 1, "the processes")
    script.send_signal(number)
    assert script.wait(240) == code
    wait_until(lambda: all_ended(folder), "the end of all processes")


def test_each_node_has_its_share(file: Path, program: Path):
    file.write_text(file.read_text().replace("[trainer]", '[trainer]\nnodes = 2\nrendezvous = "a:29400"'))
    plan, folder = plan_of(file), file.parent
    assert set(node_scripts(plan)) == {"node-0.sh", "node-1.sh"}
    script = run_script(plan, node_scripts(plan), "node-1.sh")
    wait_until(lambda: count(folder, "worker") == 2 and count(folder, "train --") == 1, "the processes")
    found = {command.rpartition(" ")[2]: devices for _, devices, command in started(folder)}
    assert found == {"rollout-2": "0", "rollout-3": "1", str(plan.config_file): "2,3,4,5"}
    script.terminate()
    assert script.wait(240) == 143
    assert all_ended(folder)


def test_a_killed_process_starts_again(file: Path, program: Path):
    plan, folder = plan_of(file), file.parent
    script = run_script(plan, node_scripts(plan), "node-0.sh")
    wait_until(lambda: count(folder, "--id env-1") == 1, "the worker")
    os.kill(next(pid for pid, _, command in started(folder) if "--id env-1" in command), signal.SIGKILL)
    wait_until(lambda: count(folder, "--id env-1") == 2, "its second start")
    script.terminate()
    output, _ = script.communicate(timeout=240)
    assert "env-1 ended with exit code 137 and starts again" in output


def test_a_process_that_the_user_must_correct_ends_the_script(file: Path, program: Path):
    plan = plan_of(file)
    script = run_script(plan, node_scripts(plan), "node-0.sh", FAILS="yes")
    output, _ = script.communicate(timeout=240)
    assert script.returncode == 1
    assert "trainer ended with exit code 2, and does not start again" in output
    assert "error: no such model" in output
    assert all_ended(file.parent)


def test_the_written_configuration_is_that_of_the_run(file: Path, program: Path):
    plan = plan_of(file, name="mine")
    write_scripts(plan, node_scripts(plan))
    config = load(plan.config_file)
    assert (config.run.id, config.bus.prefix) == ("mine", "dart.mine.")
    assert (plan.config_file.parent / config.tasks.file).exists()


def submit(file: Path, plan: LaunchPlan) -> Path:
    """Submit the jobs to a stand-in for Slurm, and return its folder."""
    write_scripts(plan, slurm_scripts(plan))
    cluster = file.parent / "cluster"
    place = slurm_cluster.write_commands(cluster)
    environ = {**os.environ, "PATH": f"{place}:{os.environ['PATH']}"}
    subprocess.run(["bash", plan.config_file.with_name("submit.sh")], env=environ, check=True, timeout=240)
    return cluster


def test_jobs_start_after_the_topics_and_end_with_the_control_job(file: Path, program: Path):
    plan, folder = plan_of(file), file.parent
    cluster = submit(file, plan)
    try:
        names = [name for name, _ in slurm_cluster.read_jobs(cluster)]
        assert names == ["ui-tars-control", *4 * ["ui-tars-env"], *4 * ["ui-tars-rollout"], "ui-tars-trainer"]
        wait_until(lambda: count(folder, "worker") == 10 and count(folder, "train --") == 1, "the jobs")
        assert started(folder)[0][2].startswith("topics apply")
        found = {command.rpartition(" ")[2]: devices for _, devices, command in started(folder) if "worker" in command}
        assert {"env-0", "env-3", "rollout-0", "rollout-3", "recorder-0", "monitor-0"} <= found.keys()
        assert found["rollout-2"] == "0", "the GPU that Slurm gives to the task"
        (folder / "done--before").touch()
        (folder / "done").touch()
        wait_until(lambda: all_ended(folder), "the end of all jobs")
    finally:
        for _, pid in slurm_cluster.read_jobs(cluster):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


def test_the_trainer_of_two_nodes_meets_at_the_first(file: Path, program: Path):
    file.write_text(file.read_text().replace("[trainer]", '[trainer]\nnodes = 2\nrendezvous = "a:29400"'))
    plan, folder = plan_of(file), file.parent
    write_scripts(plan, slurm_scripts(plan))
    script = plan.config_file.with_name("trainer.sbatch").read_text()
    assert "#SBATCH --nodes=2\n" in script
    assert "#SBATCH --gpus-per-node=4\n" in script
    place = slurm_cluster.write_commands(folder / "cluster")
    environ = {
        **os.environ, "PATH": f"{place}:{os.environ['PATH']}", "SLURM_NNODES": "2", "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "node[0-1]", "FAILS": "yes",
    }  # fmt: skip
    plan.config_file.with_name("ready").touch()
    done = subprocess.run(["bash", plan.config_file.with_name("trainer.sbatch")], env=environ, timeout=240, check=False)
    assert done.returncode == 2
    assert [command for _, _, command in started(folder)] == 2 * [
        f"train --config {plan.config_file.with_name('trainer-7.toml')}"
    ]
    assert 'rendezvous = "node0:29400"' in plan.config_file.with_name("trainer-7.toml").read_text()


def test_options_of_slurm_come_from_the_file(file: Path, program: Path):
    with file.open("a") as text:
        text.write('[launch]\noptions = ["--account=me"]\ngpu_options = ["--partition=h100"]\n')
    scripts = slurm_scripts(plan_of(file))
    assert all("#SBATCH --account=me\n" in text for name, text in scripts.items() if name != "submit.sh")
    assert {name for name, text in scripts.items() if "h100" in text} == {"rollout.sbatch", "trainer.sbatch"}


def test_a_folder_with_spaces_is_one_option_of_slurm(file: Path, program: Path):
    folder = file.parent / "run #1 of mine"
    scripts = slurm_scripts(plan_launch(read_config(file), set_keys(file), folder, "", gpus=8, gib=80.0))
    for name, text in scripts.items():
        given = [
            shlex.split(line, comments=True) for line in text.replace("#SBATCH ", "").splitlines() if "--output" in line
        ]
        assert given == ([] if name == "submit.sh" else [[given[0][0]]])
        assert all(option.startswith(f"--output={folder}/") for [option] in given)


CHECKS = [("bash", "-n"), ("shellcheck", "-s", "bash", "-")]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check[0])
def test_scripts_are_valid_shell(file: Path, program: Path, check: tuple[str, ...]):
    if shutil.which(check[0]) is None:
        pytest.skip(f"no {check[0]}")
    file.write_text(file.read_text().replace("[trainer]", '[trainer]\nnodes = 2\nrendezvous = "a:29400"'))
    plan = plan_of(file)
    scripts = {**node_scripts(plan), **slurm_scripts(plan)}
    assert len(scripts) == 7
    for name, text in scripts.items():
        done = subprocess.run(check, input=text, text=True, check=False, capture_output=True)
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ('servers = "kafka.site:9092"', "", r"bus\.servers is on loopback"),
        ('hosts = ["cassandra.site"]', "", r"store\.hosts is on loopback"),
        ("max_train_steps = 200", "", r"trainer\.max_train_steps is not set"),
        ('path = "ByteDance-Seed/UI-TARS-1.5-7B"', "", "scripts do not build the tiny policy"),
    ],
)
def test_what_scripts_can_not_start_is_refused(file: Path, program: Path, old: str, new: str, text: str):
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=text):
        slurm_scripts(plan_of(file))


def test_scripts_name_the_commit_of_a_fetched_model(file: Path, program: Path, tmp_path: Path, branch: Path):
    out = tmp_path / "out"
    branch.unlink()
    refused = invoke("launch", "slurm", file, "--output", out, "--gpus", 8)
    assert "names no commit, so processes might load different weights" in str(refused.exception)
    assert not out.exists()
    branch.write_text(COMMIT)
    assert invoke("launch", "slurm", file, "--output", out, "--gpus", 8).exit_code == 0
    assert f'path = "ByteDance-Seed/UI-TARS-1.5-7B@{COMMIT}"' in (out / "config.toml").read_text()


def test_the_command_prints_or_writes(file: Path, tmp_path: Path):
    printed = invoke("launch", "local", file, "--dry-run", "--gpus", 8)
    assert printed.exit_code == 0
    assert "CUDA_VISIBLE_DEVICES=4,5,6,7" in printed.stdout
    assert not (tmp_path / "launch").exists()
    written = invoke("launch", "slurm", file, "--output", tmp_path / "out")
    assert written.exit_code == 0
    assert "this machine has no GPU" in written.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "config.toml", "tasks.toml", "submit.sh", "control.sbatch", "env.sbatch", "rollout.sbatch", "trainer.sbatch",
    }  # fmt: skip
    refused = invoke("launch", "local", file)
    assert "give --output DIR" in str(refused.exception)


def test_a_wrong_option_of_slurm_is_refused(file: Path):
    file.write_text(file.read_text() + '[launch]\noptions = ["-p gpu"]\n')
    with pytest.raises(ConfigError, match=r"launch\.options"):
        read_config(file)
