"""The overlay of a plan: its numbers are the plan's, and its configuration is one that processes accept."""

import tomllib
from pathlib import Path

import pytest
import yaml

from dart_streams import config
from dart_streams.console.cli.plan import BASE, DEPLOYMENT
from dart_streams.console.sizing.overlay import TARGETS, request_cpu
from dart_streams.errors import UserError
from tests.command_line import invoke, invoke_json

SIZES = (180, 1000, 10_000)


def written(envs: int, folder: Path, *more: str) -> dict[str, float]:
    """Write an overlay; return the plan's figures and constants by name."""
    found = invoke_json("plan", "--envs", str(envs), "--format", "kustomize", "-o", str(folder), *more)
    named = {row["name"]: row["value"] for row in found["constants"]}
    return named | {row["name"]: row["needed"] for row in found["figures"]}


def document(file: Path):
    return yaml.safe_load(file.read_text())


def pods(folder: Path) -> dict[str, dict]:
    """The spec of each patched workload by name."""
    return {d["metadata"]["name"]: d["spec"] for d in yaml.safe_load_all((folder / "workers.yaml").read_text())}


def resources(spec: dict) -> dict:
    return spec["template"]["spec"]["containers"][0]["resources"]


@pytest.mark.parametrize("envs", SIZES)
def test_the_configuration_has_the_plan_s_numbers(envs: int, tmp_path: Path):
    plan = written(envs, tmp_path)
    sized = config.load(tmp_path / "dart.toml")
    assert sized.env.workers == plan["env_workers"]
    assert envs <= sized.env.workers * sized.env.slots < envs + sized.env.workers
    assert sized.rollout.workers == plan["rollout_workers"]
    assert sized.rollout.roll_width == plan["switching"]
    assert sized.rollout.vllm.tensor_parallel == plan["gpus_a_worker"]
    assert sized.bus.topics.partitions == plan["partitions"]
    assert sized.bus.topics.partitions >= max(sized.env.workers, sized.rollout.workers, plan["recorders"])
    assert sized.bus.topics.replicas == plan["copies"]
    assert (sized.trainer.groups_per_step, sized.trainer.processes) == (plan["batch"], plan["trainer_gpus"])


@pytest.mark.parametrize("envs", SIZES)
def test_requests_and_replicas_are_the_plan_s(envs: int, tmp_path: Path):
    plan = written(envs, tmp_path)
    found = pods(tmp_path)
    requests = {name: resources(spec).get("requests", {}) for name, spec in found.items()}
    assert found["recorder"]["replicas"] == plan["recorders"]
    assert requests["env"] == request_cpu(plan["env_cores"]) | {"memory": f"{plan['env_memory']:.0f}Mi"}
    assert resources(found["rollout"])["limits"]["nvidia.com/gpu"] == plan["gpus_a_worker"]
    assert resources(found["trainer"])["limits"]["nvidia.com/gpu"] == plan["trainer_gpus"]
    changes = {name: {op["path"]: op["value"] for op in document(tmp_path / name)} for name in TARGETS}
    bound = "/spec/maxReplicaCount"
    assert changes["env-scaling.yaml"][bound] == plan["env_workers"]
    assert changes["rollout-scaling.yaml"][bound] == plan["rollout_workers"]
    assert changes["kafka.yaml"]["/spec/replicas"] == plan["brokers"]


def test_other_keys_of_the_deployment_are_kept(tmp_path: Path):
    written(180, tmp_path)
    before, after = tomllib.loads(DEPLOYMENT.read_text()), tomllib.loads((tmp_path / "dart.toml").read_text())
    assert (after["store"], after["policy"], after["run"]) == (before["store"], before["policy"], before["run"])
    assert after["bus"]["servers"] == before["bus"]["servers"]
    assert after["trainer"]["weights_uri"] == before["trainer"]["weights_uri"]


def test_the_overlay_lies_over_the_named_folder(tmp_path: Path):
    written(180, tmp_path / "own")
    (below,) = document(tmp_path / "own/kustomization.yaml")["resources"]
    assert (tmp_path / "own" / below).resolve() == BASE.resolve()


def test_a_worker_with_a_browser_has_more_cores(tmp_path: Path):
    assert 'backend = "miniwob"' in DEPLOYMENT.read_text()
    own = written(180, tmp_path)
    remote = tmp_path / "remote.toml"
    remote.write_text(DEPLOYMENT.read_text().replace('backend = "miniwob"', 'backend = "simulated"'))
    elsewhere = written(180, tmp_path, "--config", str(remote))
    assert own["env_cores"] == pytest.approx(elsewhere["env_cores"] * 17.2 / 1.6, rel=0.05)
    assert resources(pods(tmp_path)["env"])["requests"]["cpu"] == "50m"


def test_what_the_overlay_does_not_make_is_in_its_first_lines(tmp_path: Path):
    plan = written(10_000, tmp_path)
    text = (tmp_path / "kustomization.yaml").read_text()
    assert f"{plan['nodes']:.0f} nodes of 8 cores" in text
    assert f"{plan['screenshots_written'] * 1e6:,.0f} bytes/s" in text
    assert f"{plan['screenshots_gb_a_day']:,.0f} GB a day" in text
    assert f"The plan has {plan['train_gpus']:.0f} GPUs for the trainer." in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--format", "kustomize"), "--output DIR"),
        (("-o", "DIR"), "--format kustomize"),
        (("--format", "kustomize", "-o", "DIR", "--base", "docs"), "no kustomization.yaml"),
        (("--format", "kustomize", "-o", "DIR", "--config", "none.toml"), "none.toml"),
    ],
)
def test_a_wrong_request_is_refused_with_advice(arguments: tuple[str, ...], message: str, tmp_path: Path):
    own = [str(tmp_path / "own") if argument == "DIR" else argument for argument in arguments]
    done = invoke("plan", "--envs", "180", *own)
    assert isinstance(done.exception, UserError)
    assert message in str(done.exception)
    assert not (tmp_path / "own").exists()


def test_processor_requests_are_rounded_up():
    assert [request_cpu(cores)["cpu"] for cores in (0.0, 0.05, 0.051, 1.2)] == ["50m", "50m", "100m", "1200m"]
