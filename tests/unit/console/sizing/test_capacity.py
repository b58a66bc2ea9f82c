"""The plan: formulas over constants that say where they are from."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import modes
from benchmarks.decoupling import SimulatedRun
from benchmarks.utilization import utilization_metrics
from dart_streams.config import tasks as task_sets
from dart_streams.console.cli.options import read_config
from dart_streams.console.cli.plan import gpu_constants
from dart_streams.console.sizing.capacity import CONSTANTS, plan
from dart_streams.errors import UserError
from tests.command_line import invoke, invoke_json
from tests.unit.console.sizing.model_directories import ui_tars

BASE = modes.load_workload(Path(__file__).parents[4] / "deploy/config/workload/desktop.toml")
EIGHT_GPUS = Path(__file__).parents[4] / "deploy/config/ui-tars/eight-gpus.toml"
TASKS = task_sets.load(Path(BASE.tasks.file))


def sized(envs=180, staleness=4, **changes):
    return plan(envs, BASE.workload, TASKS, staleness, changes)


def needed(sizing):
    return {figure.what: figure.needed for figure in sizing.figures}


def test_its_rates_are_those_of_the_simulation():
    shape = modes.scale_shape(30, 24, 4, curated=False)
    account = SimulatedRun(BASE, 5.0).play(modes.mode_config(BASE, "dart", shape, 0), "dart", 0)
    played = utilization_metrics(account, 2_000)
    assert played.env_utilisation > 0.95
    assert needed(sized(30))["steps"] == pytest.approx(played.actions_per_min / 60, rel=0.12)


@given(st.integers(1, 20_000), st.integers(1, 20_000))
def test_more_environments_never_need_less(one, other):
    small, large = sorted((one, other))
    less, more = needed(sized(small)), needed(sized(large))
    assert all(less[what] <= more[what] for what in less)


def test_every_constant_says_where_it_is_from_and_is_used():
    text = " ".join(figure.formula for figure in sized().figures)
    assert len({constant.name for constant in CONSTANTS}) == len(CONSTANTS)
    for constant in CONSTANTS:
        assert constant.source
        assert constant.kind in {"measured", "published", "simulated", "assumed"}
        others = [needed(sized(10_000, **{constant.name: constant.value * by})) for by in (20.0, 0.05)]
        assert others != [needed(sized(10_000))] * 2, f"{constant.name} changes nothing"
    assert "{" not in text


def test_a_given_constant_replaces_the_default():
    sizing = sized(gpus_a_worker=4.0)
    assert needed(sizing)["rollout GPUs"] == 2 * needed(sized())["rollout GPUs"]
    assert [c.kind for c in sizing.constants if c.name == "gpus_a_worker"] == ["given"]
    with pytest.raises(UserError, match="gpus_a_worker"):
        sized(gpus=4.0)


def test_large_numbers_are_written_out_and_small_ones_are_not_nothing():
    sizing = sized(10_000)
    formulas = {figure.what: figure.formula for figure in sizing.figures}
    assert "10,000 slots" in formulas["bus.topics.partitions"]
    assert 0 < needed(sized(180))["curator"] < 0.01


def test_the_command_prints_the_figures():
    found = invoke_json("plan", "--envs", "1000", "--set", "places=16")
    assert found["envs"] == 1000
    assert {figure["what"] for figure in found["figures"]} >= {"brokers", "database nodes", "rollout GPUs"}


def test_trainer_gpus_follow_from_the_tokens_of_a_step():
    """DART's 180 environments make 15,600 tokens a step with a sliding window, a quarter with blocks."""
    blocks = plan(180, BASE.workload, TASKS, 4, {"train_tokens": 3_900, "trainer_gpus": 1})
    sliding = plan(180, BASE.workload, TASKS, 4, {"trainer_gpus": 1})
    assert needed(sliding)["trainer GPUs"] == pytest.approx(4 * needed(blocks)["trainer GPUs"], abs=3)
    assert needed(sized())["trainer GPUs"] % 8 == 0


def test_a_model_s_memory_replaces_assumed_constants(tmp_path):
    folder = ui_tars(tmp_path / "model")
    deployment = read_config(EIGHT_GPUS)

    def constants(**vllm):
        kept = msgspec.structs.replace(deployment.rollout.vllm, **vllm)
        rollout = msgspec.structs.replace(deployment.rollout, vllm=kept, max_in_flight=64)
        config = msgspec.structs.replace(deployment, rollout=rollout)
        return {constant.name: constant for constant in gpu_constants(folder, config, 80.0)}

    alone, both = constants(), constants(second_set="device")
    assert (alone["places"].value, both["places"].value) == (29, 20)
    assert "second set" in both["places"].source
    assert alone["trainer_gpus"].value == 4
    counted = plan(180, BASE.workload, TASKS, 4, {}, list(both.values()))
    assert needed(counted)["rollout GPUs"] == needed(counted)["rollout workers"]
    assert needed(counted)["rollout workers"] > needed(sized())["rollout workers"]
    assert [c.kind for c in counted.constants if c.name == "places"] == ["counted"]
    given_too = plan(180, BASE.workload, TASKS, 4, {"places": 5}, list(both.values()))
    assert [c.value for c in given_too.constants if c.name == "places"] == [5]


def test_the_command_counts_a_model_or_fails_with_advice(tmp_path):
    folder = ui_tars(tmp_path / "model")
    arguments = ("plan", "--envs", "180", "--model", str(folder), "--config", str(EIGHT_GPUS), "--json")
    done = invoke(*arguments, "--gpu-memory", "80")
    assert done.exit_code == 0, done.output
    found = {row["name"]: row for row in json.loads(done.stdout)["constants"]}
    assert found["gpus_a_worker"]["value"] == 1
    refused = invoke(*arguments, "--gpu-memory", "12")
    assert isinstance(refused.exception, UserError)
    assert "GPUs of 12 GiB" in str(refused.exception)
