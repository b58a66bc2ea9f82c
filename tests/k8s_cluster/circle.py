"""The circle on the node: its pods, its newest version, and faults of its parts."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.compose.stack import wait_until
from tests.k8s_cluster.images import ARCHIVE
from tests.k8s_cluster.node import HERE, Node

STREAMS = "docker.io/dart-streams/streams"
SCALED = ("deployment/curator", "statefulset/env", "deployment/rollout", "deployment/trainer", "deployment/recorder")
NEXT_S = 120
RUNS_S = 600


def start_circle(node: Node, overlay: Path = HERE / "overlay") -> None:
    """Import the images and apply an overlay."""
    node.inside("ctr", "--namespace=k8s.io", "images", "import", str(ARCHIVE), timeout_s=900)
    node.inside("ctr", "--namespace=k8s.io", "images", "tag", f"{STREAMS}:test", f"{STREAMS}:next")
    node.apply(overlay)


def start_witness(node: Node) -> None:
    """Start the pod that prints the run's state."""
    maps = json.loads(node.kubectl("get", "configmaps", "--output=json"))["items"]
    [config] = [found["metadata"]["name"] for found in maps if found["metadata"]["name"].startswith("dart-streams-")]
    node.kubectl("apply", "--filename=-", text=(HERE / "witness.yaml").read_text().replace("@CONFIG@", config))


def is_ready(pod: dict[str, Any]) -> bool:
    """Whether all containers of a pod that is to stay are ready."""
    statuses = pod["status"].get("containerStatuses", [])
    return bool(statuses) and "deletionTimestamp" not in pod["metadata"] and all(each["ready"] for each in statuses)


def owner(pod: dict[str, Any]) -> str:
    """Return the kind of a pod's owner, empty for none."""
    return str(next((each["kind"] for each in pod["metadata"].get("ownerReferences", [])), ""))


def unready(node: Node) -> list[str]:
    """Return the pods that run until they are stopped, and are not ready."""
    lasting = [pod for pod in node.pods() if owner(pod) not in ("", "Job")]
    return [pod["metadata"]["name"] for pod in lasting if not is_ready(pod)] or ([] if lasting else ["none yet"])


def seen(node: Node) -> dict[str, Any]:
    """Return the newest line of the witness, empty before its first."""
    files = sorted(node.logs.glob("dart-streams_witness_*/witness/*.log"), key=lambda file: file.stat().st_mtime)
    for line in reversed(files[-1].read_text().splitlines() if files else []):
        text = line.split(" ", 3)[-1]
        if text.startswith("{") and text.endswith("}"):
            return dict(json.loads(text))
    return {}


def version(node: Node) -> int:
    """Return the newest published version, -1 before the first."""
    newest = seen(node).get("version")
    return -1 if newest is None else int(newest)


def wait_for_next(node: Node, what: str, versions: int = 2) -> float:
    """Wait for versions that began after now, and return the seconds that it took."""
    before = version(node)
    return wait_until(lambda: version(node) >= before + versions, f"a version after {what}; {seen(node)}", NEXT_S)


def disturb(node: Node, fault: Callable[[Node, str], None], component: str) -> float:
    """Do a fault to a component, and return the seconds from then to a version that began after its return."""
    began = time.monotonic()
    fault(node, component)
    wait_for_next(node, f"{component} came back")
    return round(time.monotonic() - began, 1)


def delete_pods(node: Node, component: str) -> None:
    """Delete the pods of a component, and wait until they are gone and their successors are ready."""
    names = [pod["metadata"]["name"] for pod in node.pods(component)]
    uids = {pod["metadata"]["uid"] for pod in node.pods(component)}
    node.kubectl("delete", "pod", *names, "--wait=false")

    def succeeded() -> bool:
        found = node.pods(component)
        return len(found) == len(names) and all(is_ready(p) and p["metadata"]["uid"] not in uids for p in found)

    wait_until(succeeded, f"successors of {names}", NEXT_S)


def kill_pods(node: Node, component: str) -> None:
    """Kill all processes of a component's containers, and wait until each container has started again."""
    before = {pod["metadata"]["uid"]: restarts(pod) for pod in node.pods(component)}
    for pod in node.pods(component):
        for process in node.processes(pod):
            # The container's first process takes the others with it.
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def restarted() -> bool:
        found = node.pods(component)
        return bool(found) and all(is_ready(p) and restarts(p) > before[p["metadata"]["uid"]] for p in found)

    wait_until(restarted, f"{component} to start again", NEXT_S)


def restarts(pod: dict[str, Any]) -> int:
    return sum(int(status["restartCount"]) for status in pod["status"].get("containerStatuses", []))


def check_run(node: Node, *scaled_by_lag: str) -> dict[str, Any]:
    """Stop the workers, and return what is broken of the run; KEDA would start those again that it scales."""
    for name in scaled_by_lag:
        node.kubectl("delete", "scaledobject", name)
    for workload in SCALED:
        node.kubectl("scale", workload, "--replicas=0")
    stopped = {name.partition("/")[2] for name in SCALED}
    wait_until(lambda: not any(node.pods(name) for name in stopped), "the workers to stop", NEXT_S)
    words = ("exec", "witness", "--", "python", "-m", "tests.k8s_cluster.check_run", "/etc/dart/dart.toml")
    return dict(json.loads(node.kubectl(*words, timeout_s=600).splitlines()[-1]))
