"""The benchmarks of curation run, and the model of the ablation learns as it says."""

import json

import msgspec
import pytest
from typer.testing import CliRunner

from benchmarks import commands as bench
from benchmarks import curation_ablation, curation_reducers
from benchmarks.curation_ablation import LearningCircle, SimulatedLearner
from dart_streams.config import parse
from dart_streams.errors import ConfigError
from topics.curated import CuratedGroup, Member
from topics.trajectories import Trajectory


def test_the_reducers_benchmark_counts_every_event_of_every_agent():
    found = curation_reducers.measure(trajectories=200, tasks=10, slots=4)
    assert list(found["agents"]) == ["difficulty", "budget", "groups", "dispatch"]
    assert found["agents"]["difficulty"]["events"] == found["agents"]["groups"]["events"] == 200
    assert found["state_bytes_most"] >= sum(agent["state_bytes"]["last"] for agent in found["agents"].values())
    assert found["state_bytes_most"] <= sum(agent["state_bytes"]["most"] for agent in found["agents"].values())


def test_low_entropy_steps_dilute_what_a_group_teaches():
    def taught(selected):
        learner = SimulatedLearner(["task"], seed=0)
        before = learner.skills["task"]
        learner.learn(group(selected), {"t": trajectory()})
        return learner.skills["task"] - before

    assert taught([1]) > taught([0, 1]) > taught([0]) > 0


def group(selected):
    member = Member(
        trajectory_id="t", reward=1.0, advantage=2.0, selected=selected, source="online", version_min=0, version_max=0
    )
    return CuratedGroup(group_id="g000000", task_id="task", members=[member], mean=0.5, std=0.5)


def trajectory():
    return Trajectory(
        trajectory_id="t",
        order_id="g000000/0/0",
        group_id="g000000",
        group_size=2,
        attempt=0,
        task_id="task",
        purpose="train",
        outcome="success",
        reward=1.0,
        steps=2,
        step_entropies=[0.1, 0.9],
        version_min=0,
        version_max=0,
        started_ms=0,
        finished_ms=0,
    )


def test_every_shipped_variant_of_the_ablation_switches_on_just_its_rule():
    found = curation_ablation.variants(curation_ablation.CONFIGS)
    assert list(found) == ["base", "+N", "+choice", "+entropy", "+length", "+pool", "all"]
    base, everything = (tables(found[name].curation) for name in ("base", "all"))
    assert everything == tables(parse({}).curation)
    rules = {"+N": "budget", "+choice": "dispatch", "+entropy": "entropy", "+length": "length", "+pool": "pool"}
    assert {name for name in base if base[name] != everything[name]} == set(rules.values())
    for variant, rule in rules.items():
        assert tables(found[variant].curation) == base | {rule: everything[rule]}


def tables(curation):
    return msgspec.to_builtins(curation)


def test_the_ablation_runs_each_configuration_of_a_folder_on_the_same_seeds(tmp_path, monkeypatch):
    monkeypatch.setattr(curation_ablation, "TARGET", 0.35)
    for name in ("base", "all"):
        (tmp_path / f"{name}.toml").write_text((curation_ablation.CONFIGS / f"{name}.toml").read_text())
    plot = tmp_path / "curves.svg"
    command = ["curation", "--seeds", "2", "--configs", str(tmp_path), "--plot", str(plot)]
    result = CliRunner().invoke(bench.app, command)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert list(found["steps_to_target"]) == ["base", "all"]
    assert found["steps_to_target"]["base"]["of_base"] == 1.0
    assert found["steps_to_target"]["all"]["median"] < found["steps_to_target"]["base"]["median"]
    assert plot.read_text().count("<svg") == 1
    again = curation_ablation.compare(2, None, tmp_path)
    assert again == found


def test_a_folder_without_a_base_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"no base\.toml"):
        curation_ablation.variants(tmp_path)


def test_the_learner_gets_better():
    circle = LearningCircle(parse({"env": {"slots": 16}, "trainer": {"groups_per_step": 4}}), seed=0)
    circle.settle()
    before = circle.learner.mean_rate()
    for _ in range(600):
        circle.end_first()
        circle.settle()
        circle.teach()
        circle.settle()
    assert circle.learner.mean_rate() > before + 0.02


def test_the_command_prints_what_a_benchmark_measured():
    result = CliRunner().invoke(bench.app, ["reducers", "--trajectories", "40", "--tasks", "5", "--slots", "4"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["agents"]["groups"]["events"] == 40
