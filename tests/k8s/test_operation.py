"""What a platform engineer asks of rendered pods: probes, disruptions, places, secrets, egress, storage, tags."""

import re
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from dart_streams import config
from dart_streams.telemetry.health_server import PORT
from tests.k8s.test_manifests import HOME, K8S, ROOT, WHOLE, resources, up

pytestmark = pytest.mark.skipif(
    not (HOME / "schemas").is_dir(), reason="`make test-k8s` sets up kustomize and the schemas"
)
Resource = dict[str, Any]
STORE_PORT, BUS_PORT, COLLECTOR_PORT, DNS_PORT = 9042, 9092, 4318, 53
BINARY = {"Mi": 2**20, "Gi": 2**30}


@pytest.fixture(scope="module")
def rendered() -> dict[str, list[Resource]]:
    return {folder: resources(K8S / folder) for folder in WHOLE}


def workloads(rendered: list[Resource], *kinds: str) -> dict[str, Resource]:
    return {r["metadata"]["name"]: r for r in rendered if r["kind"] in (kinds or ("Deployment", "StatefulSet", "Job"))}


def pod_of(workload: Resource) -> Resource:
    return workload["spec"]["template"]["spec"]


def container_of(workload: Resource) -> Resource:
    return pod_of(workload)["containers"][0]


def size(quantity: str) -> int:
    return int(quantity[:-2]) * BINARY[quantity[-2:]]


@pytest.mark.parametrize("folder", WHOLE)
def test_what_runs_is_probed_by_endpoints_that_its_process_has(folder: str, rendered):
    for name, workload in workloads(rendered[folder], "Deployment", "StatefulSet").items():
        container = container_of(workload)
        (number,) = (port["containerPort"] for port in container["ports"] if port["name"] == "health")
        assert {"name": PORT, "value": str(number)} in container["env"], name
        probes = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
        assert {kind: probe["path"] for kind, probe in probes.items()} == {
            "startup": "/livez",
            "liveness": "/livez",
            "readiness": "/readyz",
        }
        assert {probe["port"] for probe in probes.values()} == {"health"}


@pytest.mark.parametrize("folder", WHOLE)
def test_a_rolling_update_leaves_other_rollout_workers_serving(folder: str, rendered):
    rollout = workloads(rendered[folder], "Deployment")["rollout"]["spec"]
    assert rollout["strategy"]["rollingUpdate"]["maxUnavailable"] == 1
    assert rollout["minReadySeconds"] >= 10
    objects = workloads(rendered[folder], "ScaledObject")
    least = objects["rollout"]["spec"]["minReplicaCount"] if objects else rollout["replicas"]
    assert least >= 2


@pytest.mark.parametrize("folder", WHOLE)
def test_evictions_take_one_replica_at_a_time_and_block_no_drain(folder: str, rendered):
    everything = workloads(rendered[folder], "Deployment", "StatefulSet")
    budgets = {r["metadata"]["name"]: r["spec"] for r in rendered[folder] if r["kind"] == "PodDisruptionBudget"}
    single = {name for name, w in everything.items() if w["spec"].get("strategy") == {"type": "Recreate"}}
    assert budgets.keys() == everything.keys() - single
    for name, budget in budgets.items():
        assert budget["maxUnavailable"] == 1
        assert "minAvailable" not in budget
        assert budget["selector"] == everything[name]["spec"]["selector"]


@pytest.mark.parametrize("folder", WHOLE)
def test_replicas_are_spread_over_zones_and_nodes(folder: str, rendered):
    for name in ("env", "rollout", "recorder"):
        workload = workloads(rendered[folder])[name]
        spread = pod_of(workload)["topologySpreadConstraints"]
        assert [each["topologyKey"] for each in spread] == ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]
        assert all(each["labelSelector"] == workload["spec"]["selector"] for each in spread)


@pytest.mark.parametrize("folder", WHOLE)
def test_jobs_are_placed_before_the_workers_that_wait_for_them(folder: str, rendered):
    values = {r["metadata"]["name"]: r["value"] for r in rendered[folder] if r["kind"] == "PriorityClass"}
    of = {name: values[pod_of(w)["priorityClassName"]] for name, w in workloads(rendered[folder]).items()}
    waits = of.keys() - {"topics-apply", "schema-apply"}
    assert min(of["topics-apply"], of["schema-apply"]) > max(of[name] for name in waits)
    assert min(of["trainer"], of["curator"]) > max(of["env"], of["rollout"])


def secrets_of(workload: Resource) -> set[str]:
    volumes = {v["secret"]["secretName"] for v in pod_of(workload)["volumes"] if "secret" in v}
    return volumes | {source["secretRef"]["name"] for source in container_of(workload)["envFrom"]}


@pytest.mark.parametrize("folder", WHOLE)
def test_each_workload_has_its_own_secret_alone(folder: str, rendered):
    has_store = any(r["metadata"]["name"] == "dart-streams-weights" for r in rendered[folder])
    for name, workload in workloads(rendered[folder]).items():
        of_weights = {"object-store"} if has_store and name in ("trainer", "rollout") else set()
        assert secrets_of(workload) == {f"dart-streams-{name}"} | of_weights


def reached(policies: list[Resource], labels: dict[str, str]) -> list[tuple[dict[str, Any], set[int]]]:
    """The peers and ports that policies let a pod with these labels reach."""
    found = []
    for policy in policies:
        selector = policy["spec"]["podSelector"]
        fits = selector.get("matchLabels", {}).items() <= labels.items() and all(
            labels.get(each["key"]) in each["values"] for each in selector.get("matchExpressions", [])
        )
        for rule in policy["spec"].get("egress", []) if fits else []:
            found += [(peer, {port["port"] for port in rule["ports"]}) for peer in rule["to"]]
    return found


@pytest.mark.parametrize("folder", WHOLE)
def test_egress_of_pages_ends_at_names_bus_store_and_collector(folder: str, rendered):
    policies = [r for r in rendered[folder] if r["kind"] == "NetworkPolicy"]
    for name, workload in workloads(rendered[folder]).items():
        labels = workload["spec"]["template"]["metadata"]["labels"]
        assert labels["app.kubernetes.io/component"] == name
        for peer, ports in reached(policies, labels):
            if "ipBlock" in peer:
                assert name in ("trainer", "rollout")
                assert "169.254.0.0/16" in peer["ipBlock"]["except"]
            else:
                assert ports in ({DNS_PORT}, {BUS_PORT, STORE_PORT, COLLECTOR_PORT})


@pytest.mark.parametrize("folder", WHOLE)
def test_volumes_of_a_pod_are_bounded_by_its_share_of_the_disk(folder: str, rendered):
    for name, workload in workloads(rendered[folder]).items():
        folders = [v["emptyDir"] for v in pod_of(workload)["volumes"] if "emptyDir" in v]
        assert all("sizeLimit" in each for each in folders), name
        on_disk = sum(size(each["sizeLimit"]) for each in folders if each.get("medium") != "Memory")
        assert on_disk <= size(container_of(workload)["resources"]["limits"]["ephemeral-storage"]), name


@pytest.mark.parametrize("folder", WHOLE)
def test_image_tags_are_the_version_of_the_package(folder: str, rendered):
    version = re.search(r'^version = "([^"]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    for workload in workloads(rendered[folder]).values():
        tag = container_of(workload)["image"].rpartition(":")[2]
        assert tag.removesuffix("-gpu") == version[1]


@pytest.mark.parametrize("folder", WHOLE)
def test_names_of_resources_are_taken_once(folder: str, rendered):
    counts = Counter((r["kind"], r["metadata"]["name"]) for r in rendered[folder])
    assert [name for name, count in counts.items() if count > 1] == []
    accounts = {r["metadata"]["name"] for r in rendered[folder] if r["kind"] == "ServiceAccount"}
    assert {pod_of(w)["serviceAccountName"] for w in workloads(rendered[folder]).values()} == accounts


def with_component(component: str, folder: Path) -> list[Resource]:
    parts = {"resources": [up(folder, K8S / "base")], "components": [up(folder, K8S / "components" / component)]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(parts))
    return resources(folder)


def test_the_page_is_reached_by_its_host_with_its_token(tmp_path: Path):
    made = with_component("page", tmp_path)
    of = {r["kind"]: r for r in made if r["metadata"]["name"] in ("ui", "page")}
    container = container_of(of["Deployment"])
    args = container["args"]
    (rule,) = of["Ingress"]["spec"]["rules"]
    assert of["Ingress"]["spec"]["tls"][0]["hosts"] == [rule["host"]] == [args[args.index("--allow-host") + 1]]
    assert rule["http"]["paths"][0]["backend"]["service"] == {"name": "ui", "port": {"name": "page"}}
    assert of["Service"]["spec"]["ports"][0]["targetPort"] == "page"
    labels = of["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    assert of["Service"]["spec"]["selector"].items() <= labels
    assert of["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"].items() <= labels
    (port,) = {p["containerPort"] for p in container["ports"] if p["name"] == "page"}
    assert of["NetworkPolicy"]["spec"]["ingress"][0]["ports"] == [{"port": port, "protocol": "TCP"}]
    assert args[args.index("--port") + 1] == str(port)
    assert args[args.index("--token-file") + 1].startswith("/etc/dart/secrets/")
    assert {"--behind-proxy", "--host"} <= {*args}


def test_metrics_go_to_the_collector_that_prometheus_scrapes(tmp_path: Path):
    made = with_component("metrics", tmp_path)
    endpoint = urlsplit(config.load(K8S / "base/dart.toml").telemetry.otlp_endpoint)
    of = {r["kind"]: r for r in made if r["metadata"]["name"].startswith("collector")}
    assert of["Service"]["metadata"]["name"] == endpoint.hostname
    assert of["Service"]["spec"]["ports"][0]["port"] == endpoint.port
    pod = of["Deployment"]["spec"]["template"]
    scraped = pod["metadata"]["annotations"]["prometheus.io/port"]
    settings = yaml.safe_load(of["ConfigMap"]["data"]["config.yaml"])
    exporter = settings["exporters"]["prometheus"]
    assert exporter["endpoint"].endswith(f":{scraped}")
    compose = yaml.safe_load((ROOT / "deploy/otel/collector.yaml").read_text())
    assert exporter == compose["exporters"]["prometheus"], "dashboards read these names"
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    assert pod["spec"]["containers"][0]["image"] == services["collector"]["image"]


@pytest.mark.parametrize(("component", "job", "command"), [("evaluation", "evaluate", "eval"), ("report",) * 3])
def test_a_job_on_demand_is_a_pod_like_those_of_the_base(component: str, job: str, command: str, tmp_path: Path):
    made = workloads(with_component(component, tmp_path), "Job")
    (pod, container), (base, other) = ((pod_of(made[n]), container_of(made[n])) for n in (job, "topics-apply"))
    assert container["args"] == [command, "--config", "/etc/dart/dart.toml", "--json"]
    for field in ("image", "securityContext", "volumeMounts"):
        assert container[field] == other[field]
    for field in ("securityContext", "serviceAccountName", "automountServiceAccountToken", "enableServiceLinks"):
        assert pod[field] == base[field]
    assert pod_of(made[job])["restartPolicy"] == "Never"
    assert secrets_of(made[job]) == {f"dart-streams-{job}"}
    volumes, usual = ({v["name"]: v for v in each["volumes"] if v["name"] != "secrets"} for each in (pod, base))
    assert volumes == usual


def test_evaluation_and_report_go_together_in_one_overlay(tmp_path: Path):
    parts = [up(tmp_path, K8S / "components" / name) for name in ("evaluation", "report")]
    (tmp_path / "kustomization.yaml").write_text(
        yaml.safe_dump({"resources": [up(tmp_path, K8S / "base")], "components": parts})
    )
    made = workloads(resources(tmp_path), "Job")
    assert container_of(made["evaluate"])["image"] == container_of(made["report"])["image"]
    assert pod_of(made["evaluate"])["volumes"][:-1] == pod_of(made["report"])["volumes"][:-1]
