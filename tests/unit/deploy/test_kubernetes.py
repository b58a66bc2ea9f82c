"""What deploy/k8s says, held to docker-compose.yml and to the code: processes, commands, groups, topics, bounds.

tests/k8s has what needs Kubernetes' tools: that it renders, and that Kubernetes would take it.
"""

import re
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import yaml

from console.cli import main, process
from dart_streams import config
from dart_streams.bus.topology import spec_of
from dart_streams.curation import order_tracker as orders
from tests.sources import ROOT
from topics import action_requests, observations, rollout_orders
from workers.env import main as env
from workers.rollout import main as rollout

K8S = ROOT / "deploy/k8s"
CONFIGS = ("base", "components/object-store")
BASE = config.load(K8S / "base/dart.toml")
SERVICES_OF_OTHERS = {"kafka", "cassandra"}
"""In a cluster they are run by operators."""
MEASURING = {"before", "demo"}
"""What measures the demonstration and ends with it; a cluster has jobs of components for that."""
DRAIN_MARGIN_S = 10.0


def documents(path: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all((K8S / path).read_text()) if document]


def in_folder(folder: str) -> list[dict[str, Any]]:
    """The resources that a kustomization names, as they are written."""
    kustomization = documents(f"{folder}/kustomization.yaml")[0]
    return [document for file in kustomization["resources"] for document in documents(f"{folder}/{file}")]


WORKLOADS = {d["metadata"]["name"]: d for d in in_folder("base") if d["kind"] in ("Deployment", "StatefulSet", "Job")}
SCALED = {d["metadata"]["name"]: d for d in in_folder("components/keda")}


def container(workload: dict[str, Any]) -> dict[str, Any]:
    (only,) = workload["spec"]["template"]["spec"]["containers"]
    return only


def compose_services() -> dict[str, Any]:
    """Compose's services that a cluster has too: ours, and of no profile."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    left_out = SERVICES_OF_OTHERS | MEASURING
    return {name: s for name, s in services.items() if "profiles" not in s and name not in left_out}


def command(arguments: list[str]) -> list[str]:
    """A command without what differs by deployment: the configuration, a replica's name, where the page listens."""
    text = shlex.join(arguments).replace(" --host 0.0.0.0 --behind-proxy --address-file .dart/page/ui.json --json", "")
    text = text.replace("'${DART_UI_PORT:-8765}'", "8765")
    return shlex.split(re.sub(r"--(config|id) ('[^']*'|\S+)", r"--\1", text))


def test_the_processes_are_those_of_compose_with_the_same_commands():
    ours = {name: command(container(workload)["args"]) for name, workload in WORKLOADS.items()}
    assert ours == {name: command(service["command"]) for name, service in compose_services().items()}
    images = {name: container(workload)["image"] for name, workload in WORKLOADS.items()}
    assert images == {name: service["image"].split(":")[0] for name, service in compose_services().items()}
    for workload in WORKLOADS.values():
        assert container(workload)["image"] == f"dart-streams/{workload['metadata']['labels']['dart-streams/side']}"


def test_what_ends_is_a_job_and_replicas_are_named_after_their_pods():
    one_shots = {name for name, service in compose_services().items() if service.get("restart") == "no"}
    kinds = {name: workload["kind"] for name, workload in WORKLOADS.items()}
    assert {name for name, kind in kinds.items() if kind == "Job"} == one_shots
    assert {name for name, kind in kinds.items() if kind == "StatefulSet"} == {"env"}
    for name, topic in {"env": rollout_orders, "rollout": action_requests, "recorder": observations}.items():
        assert "{host}" in container(WORKLOADS[name])["args"]
        assert WORKLOADS[name]["spec"]["replicas"] <= spec_of(topic.TOPIC, BASE.bus).partitions
    assert "--id" not in container(WORKLOADS["curator"])["args"], "its place in the group is kept under one name"


@pytest.mark.parametrize("name", ["curator", "trainer", "monitor", "ui"])
def test_an_exclusive_resource_is_released_before_it_is_acquired_again(name: str):
    spec = WORKLOADS[name]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_a_pod_is_given_longer_to_end_than_its_process_takes_to_drain():
    for name, workload in WORKLOADS.items():
        if workload["kind"] != "Job":
            grace_s = workload["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
            bound_s = 0 if name in ("monitor", "ui") else BASE.run.drain_s + DRAIN_MARGIN_S
            assert grace_s >= bound_s, name


@pytest.mark.parametrize("folder", CONFIGS)
def test_a_deployment_that_kubernetes_restarts_has_no_last_training_step(folder: str):
    assert config.load(K8S / folder / "dart.toml").trainer.max_train_steps is None


def test_the_configurations_differ_only_in_model_and_weights():
    ours, own = (msgspec.to_builtins(config.load(K8S / folder / "dart.toml")) for folder in CONFIGS)
    assert {key for key in ours if ours[key] != own[key]} == {"policy", "trainer", "warmup"}
    assert own["trainer"]["weights_uri"].startswith("s3://")
    mounts = [m for c in documents("components/object-store/model.yaml") for m in container(c)["volumeMounts"]]
    assert own["policy"]["path"] in [mount["mountPath"] for mount in mounts]


def test_the_tasks_are_where_the_images_have_them():
    for image in ("streams", "model"):
        dockerfile = (ROOT / f"deploy/docker/{image}.Dockerfile").read_text()
        assert "WORKDIR /app" in dockerfile
        assert "COPY deploy/config deploy/config" in dockerfile
    inside = Path(BASE.tasks.file).relative_to("/app")
    assert (ROOT / inside).is_file()


def test_the_page_is_reached_through_loopback_only():
    """In compose by a port on the host's, in a cluster by a tunnel to the pod's: no service, no host but loopback."""
    services = compose_services()
    (port,) = services["ui"]["ports"]
    assert port.startswith("127.0.0.1:")
    assert port.count("DART_UI_PORT:-8765") == 2
    assert [name for name, service in services.items() if "ports" in service] == ["ui"]
    assert "--host" not in container(WORKLOADS["ui"])["args"]
    reached = [document for document in in_folder("base") if document["kind"] in ("Service", "Ingress")]
    assert [document["metadata"]["name"] for document in reached] == ["env"], "headless, for the names of its pods"


def test_pods_run_as_the_user_of_the_images():
    (pods,) = documents("base/pods.yaml")
    spec = pods["spec"]["template"]["spec"]
    for image in ("streams", "model"):
        assert (
            f"--uid {spec['securityContext']['runAsUser']} dart"
            in (ROOT / f"deploy/docker/{image}.Dockerfile").read_text()
        )
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    writable = {m["mountPath"] for m in container(pods)["volumeMounts"] if "emptyDir" in volumes.get(m["name"], {})}
    assert writable == {f"/app/{BASE.run.state_dir}", "/tmp", "/home/dart"}


@pytest.mark.parametrize(
    ("name", "group", "topic", "threshold"),
    [
        ("env", env.GROUP, rollout_orders.TOPIC, orders.ORDERS_PER_SLOT * BASE.env.slots),
        ("rollout", rollout.GROUP, action_requests.TOPIC, BASE.rollout.max_in_flight),
    ],
)
def test_workers_are_scaled_by_the_lag_of_their_own_group(name: str, group: str, topic: Any, threshold: float):
    scaled = SCALED[name]["spec"]
    target = WORKLOADS[name]
    assert scaled["scaleTargetRef"] == {
        "apiVersion": target["apiVersion"],
        "kind": target["kind"],
        "name": target["metadata"]["name"],
    }
    (trigger,) = scaled["triggers"]
    host, port = BASE.bus.servers.split(":")
    assert trigger["metadata"] == {
        "bootstrapServers": f"{host}.{documents('base/kustomization.yaml')[0]['namespace']}.svc:{port}",
        "consumerGroup": BASE.bus.prefix + group,
        "topic": BASE.bus.prefix + topic.name,
        "offsetResetPolicy": "earliest",
        "lagThreshold": str(int(threshold)),
    }
    assert 1 <= scaled["minReplicaCount"] <= WORKLOADS[name]["spec"]["replicas"] <= scaled["maxReplicaCount"]
    assert scaled["maxReplicaCount"] <= spec_of(topic, BASE.bus).partitions


def test_dispatch_orders_ahead_for_as_many_env_workers_as_there_may_be():
    assert BASE.env.workers == SCALED["env"]["spec"]["maxReplicaCount"] == WORKLOADS["env"]["spec"]["replicas"]
    threshold = int(SCALED["env"]["spec"]["triggers"][0]["metadata"]["lagThreshold"])
    assert orders.order_backlog(BASE) == threshold * BASE.env.workers


def test_the_kafka_is_the_one_that_the_configuration_names():
    kafka = next(d for d in in_folder("components/strimzi") if d["kind"] == "Kafka")
    pools = [d for d in in_folder("components/strimzi") if d["kind"] == "KafkaNodePool"]
    name, settings = kafka["metadata"]["name"], kafka["spec"]["kafka"]
    (listener,) = settings["listeners"]
    assert BASE.bus.servers == f"{name}-kafka-bootstrap:{listener['port']}"
    assert {pool["metadata"]["labels"]["strimzi.io/cluster"] for pool in pools} == {name}
    nodes = sum(pool["spec"]["replicas"] for pool in pools)
    assert settings["config"]["min.insync.replicas"] < settings["config"]["default.replication.factor"] <= nodes


def test_the_processes_that_pods_name_exist():
    """The commands are the code's own: a worker that is renamed there is missed here.

    The lease server of desktops is no part of a deployment: it serves clients on its own machine. No image has the
    libraries of the tracker: it runs beside a deployment, from .venv/data.
    """
    kinds = {container(w)["args"][1] for w in WORKLOADS.values() if container(w)["args"][0] == "worker"}
    assert kinds | {"desktops", "tracker"} == set(get_args(process.Kind))
    for kind in get_args(process.Kind):
        assert main.find_verbs(f"worker.{kind}") or find_spec(process.MODULES.get(kind, f"workers.{kind}.main")), kind


def test_clusters_get_the_settings_that_compose_gives_cassandra():
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    options = [
        o for o in services["cassandra"]["environment"]["JVM_OPTS"].split() if re.match(r"-Dcassandra\.(con|set)", o)
    ]
    assert options
    page = (ROOT / "docs/kubernetes.md").read_text()
    assert [option for option in options if option not in page] == []
