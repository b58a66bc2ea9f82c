"""The benchmark of the reducers counts what it applies."""

import json

from typer.testing import CliRunner

from benchmarks import commands as bench
from benchmarks import curation_reducers


def test_the_reducers_benchmark_counts_every_event_of_every_agent():
    found = curation_reducers.measure(trajectories=200, tasks=10, slots=4)
    assert list(found["agents"]) == ["difficulty", "budget", "groups", "dispatch"]
    assert found["agents"]["difficulty"]["events"] == found["agents"]["groups"]["events"] == 200
    assert found["state_bytes_most"] >= sum(agent["state_bytes"]["last"] for agent in found["agents"].values())
    assert found["state_bytes_most"] <= sum(agent["state_bytes"]["most"] for agent in found["agents"].values())


def test_the_command_prints_what_a_benchmark_measured():
    result = CliRunner().invoke(
        bench.app, ["reducers", "--trajectories", "40", "--tasks", "5", "--slots", "4", "--json"]
    )
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["agents"]["groups"]["events"] == 40
