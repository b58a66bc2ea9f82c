"""The benchmark of the reducers counts what it applies."""

import json

from typer.testing import CliRunner

from benchmarks import commands as bench
from benchmarks import curation_partitions, curation_reducers
from dart_streams.curation import difficulty, groups


def test_the_reducers_benchmark_counts_every_event_of_every_agent():
    found = curation_reducers.measure(trajectories=200, tasks=10, slots=4)
    assert list(found["agents"]) == ["difficulty", "budget", "groups", "dispatch"]
    assert found["agents"]["difficulty"]["events"] == found["agents"]["groups"]["events"] == 200
    assert found["state_bytes_most"] >= sum(agent["state_bytes"]["last"] for agent in found["agents"].values())
    assert found["state_bytes_most"] <= sum(agent["state_bytes"]["most"] for agent in found["agents"].values())


def test_the_command_prints_what_a_benchmark_measured():
    result = CliRunner().invoke(bench.app, ["reducers", "--trajectories", "40", "--tasks", "5", "--slots", "4"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["agents"]["groups"]["events"] == 40


def test_partitions_by_task_judge_staleness_by_what_they_have_seen():
    found = curation_partitions.measure(1_500, tasks=48, slots=24, counts=[1, 16])
    one, many = found["partitions"]["1"], found["partitions"]["16"]
    assert (one[difficulty.NAME], one[groups.NAME], one["stale"]) == (0, 0, found["stale"])
    assert many["stale"] < one["stale"], "newer versions are in other partitions"
    assert 0 < many[groups.NAME] < found["groups"]
    assert one["largest_jump"] < many["largest_jump"]
