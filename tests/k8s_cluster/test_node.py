"""A real Kubernetes of one node: it gets ready, runs pods, takes the demonstration's overlay, and leaves nothing.

Its tests are acts of one play, in order: each needs those before it.
"""

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dart_streams.errors import UserError
from tests.compose.own_engine import CGROUPS
from tests.compose.stack import wait_until
from tests.k8s_cluster.machine import Machine, read_machine
from tests.k8s_cluster.node import API_SERVICE, GROUP, HERE, Node, missing, running_node

POD_S = 120

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"left out: {missing()}")
POD = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: pause, namespace: default}
spec:
  selector: {matchLabels: {app: pause}}
  template:
    metadata: {labels: {app: pause}}
    spec:
      automountServiceAccountToken: false
      terminationGracePeriodSeconds: 2
      securityContext: {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}
      containers:
        - name: pause
          image: docker.io/local/pause:1
          imagePullPolicy: Never
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {drop: [ALL]}
          resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {memory: 32Mi}}
"""


@pytest.fixture(scope="module")
def before() -> Machine:
    return read_machine()


@pytest.fixture(scope="module")
def life(before: Machine) -> Iterator[contextlib.ExitStack]:
    """What the node's life is entered into; the last act ends it."""
    with contextlib.ExitStack() as entered:
        yield entered


@pytest.fixture(scope="module")
def node(life: contextlib.ExitStack, figures: dict[str, Any]) -> Node:
    began = time.monotonic()
    node = life.enter_context(running_node())
    figures["ready_s"] = round(time.monotonic() - began, 1)
    return node


def pods(node: Node, namespace: str, selector: str) -> list[dict[str, Any]]:
    listed = node.inside("kubectl", f"--namespace={namespace}", "get", "pods", "--output=json", "--selector", selector)
    return list(json.loads(listed)["items"])


def serving(node: Node) -> list[dict[str, Any]]:
    """Return the pods of the deployment whose container runs and that are not about to end."""
    return [
        pod
        for pod in pods(node, "default", "app=pause")
        if "deletionTimestamp" not in pod["metadata"]
        and any(status["ready"] for status in pod["status"].get("containerStatuses", []))
    ]


def test_names_of_services_resolve_by_the_dns_service(node: Node, figures: dict[str, Any]):
    def answered() -> bool:
        try:
            return API_SERVICE in node.inside("getent", "hosts", "kubernetes.default.svc.cluster.local")
        except UserError:
            return False

    figures["dns_s"] = wait_until(answered, "CoreDNS behind the Service kube-dns", POD_S)


def test_a_restricted_pod_runs_with_its_memory_limit(node: Node, figures: dict[str, Any]):
    node.inside("kubectl", "apply", "--filename=-", text=POD)
    figures["pod_s"] = wait_until(lambda: bool(serving(node)), "the pod to be ready", POD_S)
    [pod] = serving(node)
    container = pod["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2]
    [limit] = (CGROUPS / "memory" / GROUP).glob(f"**/{container}/memory.limit_in_bytes")
    assert int(limit.read_text()) == 32 * 2**20


def test_a_killed_container_starts_again_in_its_pod(node: Node, figures: dict[str, Any]):
    [pod] = serving(node)
    [process] = node.processes(pod)
    os.kill(process, signal.SIGKILL)

    def restarted() -> bool:
        statuses = [found["status"]["containerStatuses"][0] for found in serving(node)]
        return any(status["restartCount"] == 1 for status in statuses)

    figures["restart_s"] = wait_until(restarted, "the container to run again", POD_S)
    assert [found["metadata"]["name"] for found in serving(node)] == [pod["metadata"]["name"]]


def test_a_deleted_pod_gets_a_successor(node: Node, figures: dict[str, Any]):
    [pod] = serving(node)
    node.inside("kubectl", "--namespace=default", "delete", "pod", pod["metadata"]["name"], "--wait=false")
    names = {pod["metadata"]["name"]}
    figures["successor_s"] = wait_until(
        lambda: bool({found["metadata"]["name"] for found in serving(node)} - names), "a successor", POD_S
    )


def test_the_overlay_is_taken_and_its_pods_find_room_and_volumes(node: Node, figures: dict[str, Any]):
    node.apply(HERE / "overlay")
    wanted = {("env", 2), ("rollout", 2), ("trainer", 1), ("kafka", 1), ("cassandra", 1)}

    def scheduled() -> bool:
        found = [pod for pod in pods(node, "dart-streams", "") if pod["spec"].get("nodeName")]
        names = [pod["metadata"]["labels"].get("app.kubernetes.io/component", "") for pod in found]
        return all(names.count(name) == number for name, number in wanted)

    figures["scheduled_s"] = wait_until(scheduled, "every pod to have a node", POD_S)
    claims = json.loads(node.kubectl("get", "persistentvolumeclaims", "--output=json"))["items"]
    assert {(claim["metadata"]["name"], claim["status"]["phase"]) for claim in claims} == {
        ("state", "Bound"),
        ("kafka", "Bound"),
        ("cassandra", "Bound"),
    }


def test_pod_security_refuses_a_privileged_pod_beside_ours(node: Node):
    privileged = """
apiVersion: v1
kind: Pod
metadata: {name: privileged, namespace: dart-streams}
spec: {containers: [{name: pause, image: "docker.io/local/pause:1", securityContext: {privileged: true}}]}
"""
    with pytest.raises(UserError, match=r'violates PodSecurity "baseline'):
        node.inside("kubectl", "apply", "--filename=-", text=privileged)


def test_the_control_plane_is_small(node: Node, figures: dict[str, Any]):
    used = {name: round(bytes_ / 2**20) for name, bytes_ in node.memory().items()}
    figures["memory_mib"] = used | {"all": sum(used.values())}
    assert set(used) >= {"kube-apiserver", "kubelet", "etcd", "containerd", "coredns"}
    assert sum(used.values()) < 1500


def test_the_end_leaves_nothing_on_the_machine(life: contextlib.ExitStack, node: Node, before: Machine):
    during = read_machine()
    assert during.groups
    assert during.processes
    life.close()
    assert read_machine() == before
