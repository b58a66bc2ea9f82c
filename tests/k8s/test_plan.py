"""Rendered overlays of a plan have its numbers: requests, replicas, bounds of scaling, brokers and their disks."""

import math
import tomllib
from typing import Any, NamedTuple

import pytest
import yaml

from tests.command_line import invoke_json
from tests.k8s.test_manifests import HOME, K8S, Resource, rendered
from tests.k8s.test_operation import container_of, size, workloads

pytestmark = pytest.mark.skipif(
    not (HOME / "schemas").is_dir(), reason="`make test-k8s` sets up kustomize and the schemas"
)
SIZES = (180, 1000, 10_000)
STEP_CORES = 0.05
"""A request is the next multiple of this."""


class Planned(NamedTuple):
    """What a plan prints, and what kustomize makes of its overlay."""

    values: dict[str, float]
    made: list[Resource]

    def resources(self, name: str) -> dict[str, Any]:
        return container_of(workloads(self.made)[name])["resources"]

    def cores(self, name: str) -> float:
        return cores_of(self.resources(name)["requests"]["cpu"])


def cores_of(quantity: str | int) -> float:
    text = str(quantity)
    return float(text.removesuffix("m")) / (1000 if text.endswith("m") else 1)


@pytest.fixture(scope="module", params=SIZES)
def planned(request, tmp_path_factory) -> Planned:
    folder = tmp_path_factory.mktemp("sized")
    found = invoke_json("plan", "--envs", str(request.param), "--format", "kustomize", "-o", str(folder))
    values = {row["name"]: row["value"] for row in found["constants"]}
    values |= {row["name"]: row["needed"] for row in found["figures"]}
    return Planned(values, list(yaml.safe_load_all(rendered(folder))))


def test_rendered_processor_requests_are_the_plan_s(planned: Planned):
    """The next step above the plan's cores, which the plan prints with three digits."""
    values = planned.values
    recorder = values["steps_per_s"] * values["recorder_ms"] / 1000 / values["busy"] / values["recorders"]
    needed = {"env": values["env_cores"], "recorder": recorder, "curator": values["curator_cores"] / values["busy"]}
    for name, cores in needed.items():
        asked = planned.cores(name)
        assert cores * 0.99 <= asked < cores * 1.01 + STEP_CORES, name


def test_rendered_memory_and_gpus_are_the_plan_s(planned: Planned):
    values, env = planned.values, planned.resources("env")
    assert size(env["requests"]["memory"]) == math.ceil(values["env_memory"]) * 2**20
    assert size(env["limits"]["memory"]) == 2 * size(env["requests"]["memory"])
    assert planned.resources("rollout")["limits"]["nvidia.com/gpu"] == values["gpus_a_worker"]
    assert planned.resources("trainer")["limits"]["nvidia.com/gpu"] == values["trainer_gpus"]


def test_rendered_replicas_and_partitions_are_the_plan_s(planned: Planned):
    values, scaled = planned.values, workloads(planned.made, "ScaledObject")
    assert workloads(planned.made)["recorder"]["spec"]["replicas"] == values["recorders"]
    assert scaled["env"]["spec"]["maxReplicaCount"] == values["env_workers"]
    assert scaled["rollout"]["spec"]["maxReplicaCount"] == values["rollout_workers"]
    (made,) = (r for r in planned.made if r["kind"] == "ConfigMap")
    topics = tomllib.loads(made["data"]["dart.toml"])["bus"]["topics"]
    assert topics == {"partitions": values["partitions"], "replicas": values["copies"]}


def test_rendered_brokers_hold_the_plan_s_log(planned: Planned):
    values, nodes = planned.values, workloads(planned.made, "KafkaNodePool")["nodes"]["spec"]
    assert nodes["replicas"] == values["brokers"] >= values["copies"]
    assert cores_of(nodes["resources"]["requests"]["cpu"]) == values["broker_cores"]
    (volume,) = nodes["storage"]["volumes"]
    disk_gb = int(volume["size"].removesuffix("G"))
    assert values["log_gb"] <= disk_gb * nodes["replicas"] < values["log_gb"] * 1.5


def test_the_base_asks_the_plan_s_memory_for_its_slots():
    slots = tomllib.loads((K8S / "base/dart.toml").read_text())["env"]["slots"]
    found = invoke_json("plan", "--envs", "64", "--set", f"slots_a_host={slots}")
    (needed,) = (row["needed"] for row in found["figures"] if row["name"] == "env_memory")
    env = container_of(workloads(list(yaml.safe_load_all((K8S / "base/env.yaml").read_text())))["env"])
    assert size(env["resources"]["requests"]["memory"]) == needed * 2**20
