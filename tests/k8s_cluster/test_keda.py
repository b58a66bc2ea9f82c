"""KEDA scales env and rollout workers by lag, up and down, and nothing is lost.

The tests are the acts of one play, in order; each needs those before it.
"""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.compose.stack import wait_until
from tests.k8s_cluster import circle
from tests.k8s_cluster.images import ARCHIVE
from tests.k8s_cluster.keda import keda_folder, serves_metrics, start_keda
from tests.k8s_cluster.node import HERE, Node, missing, running_node

SCALED_S = 90
"""Of the issue: from a lag to its workers. The metric is asked for every 5 s, and the autoscaler looks every 15 s."""
FEWER_S = 240
ENVS, ROLLOUTS = 3, 3

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=f"left out: {missing()}"),
    pytest.mark.skipif(not ARCHIVE.exists(), reason="left out: the images are not built"),
    pytest.mark.skipif(keda_folder() is None, reason="left out: KEDA is not built (make test-k8s-keda)"),
]


@pytest.fixture(scope="module")
def node(figures: dict[str, Any]) -> Iterator[Node]:
    with running_node() as found:
        began = time.monotonic()
        start_keda(found)
        wait_until(lambda: serves_metrics(found), "KEDA to serve metrics", circle.RUNS_S)
        figures["keda_ready_s"] = round(time.monotonic() - began, 1)
        circle.start_circle(found, HERE / "scaled")
        yield found


def ready_pods(node: Node, component: str) -> int:
    """Return the number of pods of a component that are ready and stay."""
    statuses = [pod["status"].get("containerStatuses", []) for pod in node.pods(component) if stays(pod)]
    return sum(bool(each) and all(status["ready"] for status in each) for each in statuses)


def stays(pod: dict[str, Any]) -> bool:
    return "deletionTimestamp" not in pod["metadata"]


def test_lag_of_orders_and_requests_starts_more_workers(node: Node, figures: dict[str, Any]):
    wait_until(lambda: not circle.unready(node), "all pods to be ready", circle.RUNS_S)
    circle.start_witness(node)
    wait_until(lambda: circle.version(node) >= 0, "the trainer's first version", circle.NEXT_S)
    figures["env_up_s"] = wait_until(lambda: ready_pods(node, "env") >= ENVS, "more env workers", SCALED_S)
    figures["rollout_up_s"] = wait_until(
        lambda: ready_pods(node, "rollout") >= ROLLOUTS, "more rollout workers", SCALED_S
    )
    circle.wait_for_next(node, "workers were started")


def test_workers_go_when_nothing_is_ordered(node: Node, figures: dict[str, Any]):
    node.kubectl("scale", "deployment/curator", "--replicas=0")
    figures["env_down_s"] = wait_until(lambda: len(node.pods("env")) == 1, "one env worker", FEWER_S)
    figures["rollout_down_s"] = wait_until(lambda: len(node.pods("rollout")) == 2, "two rollout workers", FEWER_S)


def test_the_circle_goes_on_with_more_workers_again(node: Node, figures: dict[str, Any]):
    node.kubectl("scale", "deployment/curator", "--replicas=1")
    figures["env_up_again_s"] = wait_until(lambda: ready_pods(node, "env") >= ENVS, "more env workers", SCALED_S)
    circle.wait_for_next(node, "the curator is back")


def test_nothing_is_lost_by_scaling(node: Node):
    assert circle.check_run(node, "env", "rollout") == {}
