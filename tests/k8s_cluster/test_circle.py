"""The demonstration's overlay on a real Kubernetes: a scripted circle that is disturbed in each of its parts.

The tests are the acts of one play, in order; each needs those before it.
"""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from dart_streams.errors import UserError
from tests.compose.stack import wait_until
from tests.k8s_cluster.circle import (
    NEXT_S,
    RUNS_S,
    STREAMS,
    check_run,
    delete_pods,
    disturb,
    kill_pods,
    start_circle,
    start_witness,
    unready,
    version,
    wait_for_next,
)
from tests.k8s_cluster.images import ARCHIVE
from tests.k8s_cluster.node import Node, missing, running_node

OURS = ("env", "rollout", "recorder", "curator", "trainer", "ui")
SERVICES = ("kafka", "cassandra")
DRAIN_S = 60
"""Longer than episodes and answers take to end, `run.drain_s`."""
STREAMS_SIDE = ("statefulset/env", "deployment/recorder", "deployment/curator", "deployment/monitor", "deployment/ui")

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=f"left out: {missing()}"),
    pytest.mark.skipif(not ARCHIVE.exists(), reason="left out: the images are not built"),
]


@pytest.fixture(scope="module")
def node(figures: dict[str, Any]) -> Iterator[Node]:
    with running_node() as found:
        began = time.monotonic()
        start_circle(found)
        figures["import_s"] = round(time.monotonic() - began, 1)
        yield found


def test_all_pods_run_and_the_circle_trains(node: Node, figures: dict[str, Any]):
    figures["all_ready_s"] = wait_until(lambda: not unready(node), f"all pods to be ready: {unready(node)}", RUNS_S)
    start_witness(node)
    figures["trains_s"] = wait_until(lambda: version(node) >= 2, "training to begin", NEXT_S)


@pytest.mark.parametrize("component", [*OURS, *SERVICES])
def test_the_circle_trains_on_after_pods_are_deleted(node: Node, figures: dict[str, Any], component: str):
    figures.setdefault("deleted_s", {})[component] = disturb(node, delete_pods, component)


@pytest.mark.parametrize("component", [*OURS, *SERVICES])
def test_the_circle_trains_on_after_a_crash(node: Node, figures: dict[str, Any], component: str):
    figures.setdefault("killed_s", {})[component] = disturb(node, kill_pods, component)


def test_a_rolling_update_of_the_streams_image_loses_no_version(node: Node, figures: dict[str, Any]):
    before = version(node)
    node.kubectl("set", "image", *STREAMS_SIDE, f"dart={STREAMS.removeprefix('docker.io/')}:next")
    for workload in STREAMS_SIDE:
        node.kubectl("rollout", "status", workload, f"--timeout={RUNS_S}s", timeout_s=RUNS_S + 30)
    figures["updated_s"] = wait_for_next(node, "the update")
    assert version(node) > before


def test_a_drain_leaves_one_worker_of_a_kind_until_others_run(node: Node, figures: dict[str, Any]):
    """There is no other node: the budgets hold the second env and rollout worker, and the rest is evicted."""
    began = time.monotonic()
    selected = ("--delete-emptydir-data", "--pod-selector=app.kubernetes.io/name=dart-streams", f"--timeout={DRAIN_S}s")
    with pytest.raises(UserError, match="would violate the pod's disruption budget"):
        node.kubectl("drain", "node", *selected, timeout_s=RUNS_S)
    stay = [name for name in OURS for pod in node.pods(name) if pod["spec"].get("nodeName")]
    assert stay == ["env", "rollout"]
    node.kubectl("uncordon", "node")
    wait_until(lambda: not unready(node), "all pods to be ready", RUNS_S)
    wait_for_next(node, "the drain")
    figures["drained_s"] = round(time.monotonic() - began, 1)


def test_nothing_is_lost_or_trained_twice_and_the_store_is_the_log(node: Node, figures: dict[str, Any]):
    figures["versions"] = version(node)
    assert check_run(node) == {}
