"""``run --dry-run``: what a run would start on GPUs that are not there; nothing is written or started."""

import json
from pathlib import Path
from typing import Any

import pytest

from console.cli.options import CHECKOUT, read_config
from console.runs import run_folder
from tests.command_line import invoke, invoke_json
from tests.unit.console.sizing.model_directories import ui_tars

DEMO = CHECKOUT / "deploy/config/demo.toml"
UI_TARS = CHECKOUT / "deploy/config/ui-tars/eight-gpus.toml"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The demonstration's file with a state folder that does not exist."""
    path = tmp_path / "c.toml"
    text = DEMO.read_text().replace('"tasks.toml"', f'"{DEMO.parent}/tasks.toml"')
    path.write_text(text.replace("[run]", f'[run]\nstate_dir = "{tmp_path}/state"'))
    return path


def devices(plan: dict[str, Any]) -> dict[str, str | None]:
    return {row["process"]: row["environment"].get("CUDA_VISIBLE_DEVICES") for row in plan["processes"]}


@pytest.mark.parametrize(
    ("gpus", "rollout", "trainer"), [(1, ["0"], "0"), (2, ["0"], "1"), (8, ["0", "1", "2", "3"], "4,5,6,7")]
)
def test_simulated_gpus_are_given_to_processes(file: Path, gpus: int, rollout: list[str], trainer: str):
    before = set(file.parent.rglob("*"))
    plan = invoke_json("run", file, "--dry-run", "--id", "one", "--gpus", gpus)
    found = devices(plan)
    assert [found.pop(f"rollout-{number}") for number in range(len(rollout))] == rollout
    assert found.pop("trainer") == trainer
    assert found.pop("policy") == trainer[0], "the tiny policy is built where the trainer will be"
    assert set(found.values()) == {""}
    assert {"env-0", "recorder-0", "curator-0", "monitor-0", "ui"} <= found.keys()
    assert plan["configuration"]["run"]["id"] == "one"
    assert set(file.parent.rglob("*")) == before


def test_the_commands_of_a_second_node_are_printed(file: Path):
    text = file.read_text().replace("[trainer]", '[trainer]\nnodes = 2\nrendezvous = "node0:29400"')
    file.write_text(text)
    plan = invoke_json("run", file, "--dry-run", "--gpus", 4)
    second = {row["process"]: row["environment"] for row in plan["processes"] if row["node"] == 1}
    assert second == {
        "rollout-2": {"CUDA_VISIBLE_DEVICES": "0"},
        "rollout-3": {"CUDA_VISIBLE_DEVICES": "1"},
        "trainer": {"CUDA_VISIBLE_DEVICES": "2,3"},
    }
    bare = invoke_json("run", file, "--dry-run")
    assert [row["process"] for row in bare["processes"] if row["node"] == 1] == ["trainer"]


def test_a_machine_without_gpus_has_the_environment_of_before(file: Path):
    file.write_text(file.read_text().replace("[hardware]", "[hardware]\ngpus = 0"))
    plan = json.loads(invoke("run", file, "--dry-run", "--json").stdout)
    assert set(plan) == {"configuration", "processes", "notes"}
    assert set(devices(plan).values()) == {None}
    assert all(not row["environment"] for row in plan["processes"])


def test_the_text_has_keys_memory_and_commands_and_what_is_not_known(tmp_path: Path, file: Path):
    folder = ui_tars(tmp_path / "UI-TARS-1.5-7B")
    result = invoke("run", UI_TARS, "--dry-run", "--gpus", 8, "--init", folder, "--id", "mine")
    assert result.exit_code == 0, result.output
    assert "processes = 4" in result.stdout
    assert "76.2 of 80.0 GiB" in result.stdout
    assert "CUDA_VISIBLE_DEVICES=4,5,6,7 " in result.stdout
    assert "/runs/mine/config.toml" in result.stdout
    result = invoke("run", file, "--dry-run", "--gpus", 2)
    assert "RUN stands for the run's id" in result.stderr
    missing = invoke("run", UI_TARS, "--dry-run", "--gpus", 8)
    assert "memory is not known" in missing.stderr


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--gpus", "2"], "--gpus and --json go with --dry-run"),
        (["--json"], "--gpus and --json go with --dry-run"),
        (["--dry-run", "--attached"], "--dry-run prints what a run starts"),
        (["--dry-run", "--id", "a b"], "run id 'a b'"),
        (["--dry-run", "--set", "env.slot=3"], "unknown key 'env.slot': did you mean 'slots'?"),
        (["--dry-run", "--set", "env.slots=many"], "env.slots: Expected `int`, got `str`"),
        (["--dry-run", "--set", "env.slots"], "'env.slots' is no setting"),
        (["--dry-run", "--set", "env=3"], "env: expected a table"),
        (["--dry-run", "--minutes", "-1"], "run.minutes: Expected `float` >= 0.0"),
        (["--attached", "--set", "env.slots=3"], "an attached run's processes have read their configuration"),
    ],
)
def test_contradicting_options_are_refused(file: Path, options: list[str], text: str):
    result = invoke("run", file, *options)
    assert text in str(result.exception)


def test_a_run_that_asks_for_missing_gpus_is_refused_before_it_writes(file: Path):
    file.write_text(file.read_text().replace("[hardware]", "[hardware]\ngpus = 64"))
    result = invoke("run", file, "--id", "one")
    assert "hardware.gpus = 64" in str(result.exception)
    assert not (file.parent / "state").exists()


@pytest.mark.parametrize(("ranks", "found"), [(2, ["0,1", "2,3"]), (8, None)])
def test_workers_of_several_gpus_are_placed_unless_heads_forbid_it(tmp_path: Path, ranks: int, found: list[str] | None):
    folder = ui_tars(tmp_path / "UI-TARS-1.5-7B")
    config = tmp_path / "c.toml"
    text = UI_TARS.read_text().replace("vllm.parity_nats", f"vllm.tensor_parallel = {ranks}\nvllm.parity_nats")
    text = text.replace("workers = 4", "workers = 2").replace('"osworld-', f'"{UI_TARS.parent}/osworld-')
    config.write_text(text)
    result = invoke("run", config, "--dry-run", "--gpus", 8, "--init", folder, "--id", "mine", "--json")
    if found is None:
        assert "tensor_parallel = 8 does not divide the 28 attention heads" in str(result.exception)
        return
    placed = devices(json.loads(result.stdout))
    assert [placed[f"rollout-{number}"] for number in range(2)] == found
    assert placed["trainer"] == "4,5,6,7"


def test_keys_of_the_command_win_over_file_recipe_and_gpus(file: Path):
    options = ["--recipe", "ui-s1", "--set", "env.slots=5", "--set", "recipes.ui-s1.bound=2", "--set", "env.workers=2"]
    plan = invoke_json("run", file, "--dry-run", *options, "--minutes", 3)
    keys = plan["configuration"]
    assert (keys["env"]["slots"], keys["run"]["minutes"], keys["recipes"]["ui-s1"]["bound"]) == (5, 3.0, 2)
    assert {"env-0", "env-1"} <= devices(plan).keys()
    plan = invoke_json("run", file, "--dry-run", "--gpus", 8, "--set", "rollout.workers=3")
    assert [name for name in devices(plan) if name.startswith("rollout")] == ["rollout-0", "rollout-1", "rollout-2"]


def test_a_resumed_run_goes_on_with_keys_of_the_command(file: Path):
    config = read_config(file)
    folder = run_folder.create(config, Path(config.tasks.file), "one", resume=False)
    resumed = ["run", "--resume", "one", "--state", folder.path.parents[1], "--dry-run"]
    result = invoke(*resumed, "--set", "trainer.learning_rate=2e-4", "--minutes", 1)
    assert result.exit_code == 0, result.exception
    assert "learning_rate = 0.0002" in result.stdout
    assert "changes trainer.learning_rate" in result.stderr and "changes run.minutes" in result.stderr
    refused = invoke(*resumed, "--set", "trainer.learning_rat=1")
    assert "did you mean 'learning_rate'?" in str(refused.exception)
