"""The test's overlay changes the demonstration's overlay in a listed way only."""

import copy
import re
import shutil
import subprocess
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.k8s_cluster.node import HERE, HOME, RENDER, ROOT
from tests.k8s_cluster.overlay_changes import Change, compare_resources

DEMO = ROOT / "deploy/k8s/overlays/demo"
REMOVED = {("Kafka", "kafka"), ("KafkaNodePool", "nodes")}
ADDED = {
    ("Service", "kafka-kafka-bootstrap"),
    ("StatefulSet", "kafka"),
    ("PersistentVolumeClaim", "kafka"),
    ("Service", "cassandra-dc1-service"),
    ("StatefulSet", "cassandra"),
    ("PersistentVolumeClaim", "cassandra"),
    ("PersistentVolume", "kafka"),
    ("PersistentVolume", "cassandra"),
    ("PersistentVolume", "state"),
}
CONFIGURATION = ("data.dart.toml", "data.phone-tasks.toml")
PHONES = "template.spec.containers[phones]."
"""Where the container of stand-ins is, in the specification of environment workers."""
REQUEST = re.compile(r"\.resources\.requests\.(cpu|memory)$")
UNITS = {"m": Decimal("0.001"), "": Decimal(1), "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30)}


def amount(quantity: str) -> Decimal:
    """Read a quantity of Kubernetes: cores or bytes."""
    number, unit = re.fullmatch(r"([\d.]+)(\D*)", quantity).groups()  # type: ignore[union-attr]
    return Decimal(number) * UNITS[unit]


def is_allowed(change: Change) -> bool:
    where = (change.kind, change.name)
    if not change.path:
        return where in (REMOVED if change.after is None else ADDED)
    if change.path in CONFIGURATION and where == ("ConfigMap", "dart-streams"):
        return True
    if change.before is None and where == ("StatefulSet", "env") and change.path.startswith(f"spec.{PHONES}"):
        return True
    if change.before is None or change.after is None:
        return False
    if REQUEST.search(change.path):
        return amount(str(change.after)) < amount(str(change.before))
    if change.path == "spec.replicas":
        return bool(change.after < change.before)
    if change.path.endswith("].image"):
        return str(change.before).rpartition(":")[0] == str(change.after).rpartition(":")[0]
    # A ConfigMap's name has the digest of its content.
    is_reference = change.path.endswith("configMap.name") or where == ("ConfigMap", "dart-streams")
    return is_reference and change.path.endswith(".name") and str(change.after).startswith("dart-streams-")


def render(folder: Path) -> list[dict[str, Any]]:
    built = sorted(HOME.glob("bin-*/kubectl"))
    program = str(built[-1]) if built else shutil.which("kubectl")
    if program is None:
        pytest.skip("no kubectl: `make test-k8s-cluster` builds one")
    done = subprocess.run([program, *RENDER[1:], str(folder)], capture_output=True, text=True)
    if "unknown command" in done.stderr or 'unknown field "components"' in done.stderr:
        pytest.skip("kubectl is too old: `make test-k8s-cluster` builds one")
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.fixture(scope="module")
def demo() -> list[dict[str, Any]]:
    return render(DEMO)


@pytest.fixture(scope="module")
def tested() -> list[dict[str, Any]]:
    return render(HERE / "overlay")


def test_the_overlay_changes_only_what_is_listed(demo: list[dict[str, Any]], tested: list[dict[str, Any]]):
    changes = compare_resources(demo, tested)
    assert [change for change in changes if not is_allowed(change)] == []
    whole = {(change.kind, change.name) for change in changes if not change.path}
    assert whole == REMOVED | ADDED


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["replicas"], 9),
        (["template", "spec", "securityContext", "runAsUser"], 0),
        (["template", "spec", "containers", 0, "args"], ["worker", "env"]),
        (["template", "spec", "containers", 0, "image"], "another/image:test"),
        (["template", "spec", "containers", 0, "resources", "limits", "memory"], "64Gi"),
        (["template", "spec", "containers", 0, "resources", "requests", "cpu"], "9"),
        (["template", "spec", "containers", 0, "env"], [{"name": "A", "value": "b"}]),
    ],
)
def test_any_other_change_is_refused(demo: list[dict[str, Any]], path: list[Any], value: Any):
    changed = copy.deepcopy(demo)
    place = next(each for each in changed if (each["kind"], each["metadata"]["name"]) == ("StatefulSet", "env"))["spec"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    changes = compare_resources(demo, changed)
    assert changes
    assert not all(is_allowed(change) for change in changes)


def test_an_added_and_a_removed_resource_are_refused(demo: list[dict[str, Any]]):
    other = {"kind": "Secret", "metadata": {"name": "other"}}
    assert not any(is_allowed(change) for change in compare_resources(demo, [*demo, other]))
    assert not any(is_allowed(change) for change in compare_resources([*demo, other], demo))
