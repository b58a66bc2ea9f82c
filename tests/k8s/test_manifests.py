"""deploy/k8s renders, its resources are valid, and its pods have no forbidden settings.

`make test-k8s` sets up what this needs; tests/unit/test_kubernetes.py holds the manifests to the code.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from console.cli.topics import specs_of
from dart_streams import config
from dart_streams.bus.topology import strimzi_yaml
from tests.sources import ROOT

HOME = ROOT / ".dart/k8s-test"
K8S = ROOT / "deploy/k8s"
WHOLE = ("base", "overlays/demo", "overlays/gpu")
COMPONENTS = tuple(sorted(folder.name for folder in (K8S / "components").iterdir()))
RELEASES = ("1.31", "1.37")
"""From the oldest that we claim to the newest that is known."""

pytestmark = pytest.mark.skipif(
    not (HOME / "schemas").is_dir(), reason="`make test-k8s` sets up kustomize and the schemas"
)
Resource = dict[str, Any]


def rendered(folder: Path) -> str:
    done = subprocess.run([HOME / "kustomize", "build", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, "kustomize warns"
    return done.stdout


def resources(folder: Path) -> list[Resource]:
    return list(yaml.safe_load_all(rendered(folder)))


def checked(text: str, release: str, scratch: Path) -> list[str]:
    """Return the problems of resources; skip where a kind's definition could not be fetched."""
    file = scratch / "resources.yaml"
    file.write_text(text)
    command = [HOME / "schemas/bin/python", ROOT / "tests/k8s/check.py", release, HOME / "definitions", file]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    if found["unknown"] and not found["problems"]:
        pytest.skip(f"no definition of {', '.join(found['unknown'])}: tests/k8s/setup.sh said why")
    return found["problems"]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("folder", WHOLE)
def test_kubernetes_takes_every_resource_and_knows_every_field(folder: str, release: str, tmp_path: Path):
    assert checked(rendered(K8S / folder), release, tmp_path) == []


@pytest.mark.parametrize("component", COMPONENTS)
def test_each_component_can_be_had_alone(component: str, tmp_path: Path):
    alone = {"resources": [up(tmp_path, K8S / "base")], "components": [up(tmp_path, K8S / "components" / component)]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(alone))
    assert checked(rendered(tmp_path), RELEASES[-1], tmp_path) == []


def up(start: Path, target: Path) -> str:
    """The relative path, as kustomize wants it."""
    return "../" * len(start.resolve().relative_to("/").parts) + str(target.resolve().relative_to("/"))


def test_strimzi_takes_every_exported_topic(tmp_path: Path):
    topics = strimzi_yaml(specs_of(config.load(K8S / "base/dart.toml")), "kafka", "dart-streams")
    assert checked(topics, RELEASES[-1], tmp_path) == []


@pytest.mark.parametrize(
    ("kind", "place", "wrong", "message"),
    [
        ("Deployment", ("spec", "template", "spec", "containers", 0), {"readinesProbe": {}}, "readinesProbe"),
        ("StatefulSet", ("spec",), {"replicas": "many"}, "many"),
        ("ScaledObject", ("spec",), {"maxReplicas": 4}, "maxReplicas"),
        ("Kafka", ("spec", "kafka"), {"replicas": 3}, "replicas"),
        ("KafkaNodePool", ("spec",), {"roles": ["brokers"]}, "brokers"),
    ],
)
def test_a_wrong_field_would_be_seen(kind: str, place: tuple[str | int, ...], wrong: Any, message: str, tmp_path: Path):
    resource = next(r for r in resources(K8S / "overlays/gpu") if r["kind"] == kind)
    part = resource
    for step in place:
        part = part[step]
    part.update(wrong)
    (problem,) = checked(yaml.safe_dump(resource), RELEASES[-1], tmp_path)
    assert message in problem


def pods(folder: str) -> list[Resource]:
    """The pod templates of a rendered folder."""
    return [r["spec"]["template"] for r in resources(K8S / folder) if r["kind"] in ("Deployment", "StatefulSet", "Job")]


@pytest.mark.parametrize("folder", WHOLE)
def test_no_pod_has_more_than_it_needs(folder: str):
    for pod in pods(folder):
        spec = pod["spec"]
        (container,) = spec["containers"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"cpu", "memory", "ephemeral-storage"} <= container["resources"]["requests"].keys()
        assert {"memory", "ephemeral-storage"} <= container["resources"]["limits"].keys()
        assert {port["name"] for port in container.get("ports", [])} <= {"health", "page"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        kinds = {key for volume in spec["volumes"] for key in volume if key != "name"}
        assert kinds <= {"configMap", "secret", "emptyDir", "persistentVolumeClaim"}
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in spec["volumes"]}


@pytest.mark.parametrize("folder", WHOLE)
def test_pods_take_no_connections_and_no_secret_is_written_down(folder: str):
    all_of_it = resources(K8S / folder)
    (policy,) = (r for r in all_of_it if r["kind"] == "NetworkPolicy" and r["metadata"]["name"] == "dart-streams")
    chosen = policy["spec"]["podSelector"]["matchLabels"].items()
    assert all(chosen <= pod["metadata"]["labels"].items() for pod in pods(folder))
    assert (policy["spec"]["policyTypes"], policy["spec"].get("ingress")) == (["Ingress", "Egress"], None)
    assert {r["spec"]["clusterIP"] for r in all_of_it if r["kind"] == "Service"} == {"None"}
    assert not {"Secret", "Ingress", "Gateway"} & {r["kind"] for r in all_of_it}


@pytest.mark.parametrize("folder", WHOLE)
def test_each_pod_reads_the_configuration_that_is_rendered(folder: str):
    (made,) = (r for r in resources(K8S / folder) if r["kind"] == "ConfigMap")
    for pod in pods(folder):
        (volume,) = (volume for volume in pod["spec"]["volumes"] if volume["name"] == "config")
        assert volume["configMap"]["name"] == made["metadata"]["name"]
        args = pod["spec"]["containers"][0]["args"]
        path = args[args.index("--config") + 1]
        assert path in [mount["mountPath"] for mount in pod["spec"]["containers"][0]["volumeMounts"]]
        assert Path(path).name in made["data"]


def claims(folder: str, access: str) -> set[str]:
    return {
        r["metadata"]["name"]
        for r in resources(K8S / folder)
        if r["kind"] == "PersistentVolumeClaim" and access in r["spec"]["accessModes"]
    }


def mounting(folder: str, claim: str) -> set[str]:
    """The components whose pods mount a claim for writing."""
    return {
        pod["metadata"]["labels"]["app.kubernetes.io/component"]
        for pod in pods(folder)
        for volume in pod["spec"]["volumes"]
        if (found := volume.get("persistentVolumeClaim")) and found["claimName"] == claim and not found.get("readOnly")
    }


def test_a_claim_that_several_write_is_one_that_several_may_mount():
    assert mounting("base", "state") == {"policy", "trainer", "rollout"}
    assert claims("base", "ReadWriteMany") == {"state"}


def test_with_an_object_store_no_volume_is_written_by_two():
    assert mounting("overlays/gpu", "state") == {"trainer"}
    assert claims("overlays/gpu", "ReadWriteMany") == set()


def test_with_gpus_each_engine_and_the_trainer_has_one():
    for pod in pods("overlays/gpu"):
        wants = pod["spec"]["containers"][0]["resources"]["limits"].get("nvidia.com/gpu")
        assert wants == (1 if pod["spec"]["containers"][0]["image"].startswith("dart-streams/model:") else None)
