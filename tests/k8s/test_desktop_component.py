"""The component for desktops: env pods may make sandboxes, and no other pod has more rights than before."""

from pathlib import Path

import pytest

from tests.k8s.test_manifests import HOME, K8S, Resource, resources
from tests.k8s.test_operation import container_of, pod_of, with_component, workloads

pytestmark = pytest.mark.skipif(
    not (HOME / "schemas").is_dir(), reason="`make test-k8s` sets up kustomize and the schemas"
)
SANDBOXES = {
    "seccompProfile": {"type": "Unconfined"},
    "appArmorProfile": {"type": "Unconfined"},
    "procMount": "Unmasked",
}
"""What bubblewrap needs beyond the pods of the base; tests/compose/test_desktop.py shows it by trial."""


@pytest.fixture
def rendered(tmp_path: Path) -> list[Resource]:
    return with_component("desktop", tmp_path)


def test_env_pods_may_make_sandboxes_and_have_no_capabilities(rendered: list[Resource]):
    env, before = (workloads(made)["env"] for made in (rendered, resources(K8S / "base")))
    assert container_of(env)["securityContext"] == {**container_of(before)["securityContext"], **SANDBOXES}
    assert pod_of(env)["hostUsers"] is False
    assert pod_of(env)["securityContext"] == pod_of(before)["securityContext"]
    assert container_of(env)["image"] == container_of(before)["image"].replace("/streams:", "/desktop:")


def test_other_pods_are_those_of_the_base(rendered: list[Resource]):
    ours, base = (workloads(made) for made in (rendered, resources(K8S / "base")))
    assert ours.keys() == base.keys()
    assert all(ours[name] == base[name] for name in ours if name != "env")


def test_the_namespace_admits_these_pods(rendered: list[Resource]):
    (namespace,) = (r for r in rendered if r["kind"] == "Namespace")
    assert namespace["metadata"]["labels"] == {
        "pod-security.kubernetes.io/enforce": "privileged",
        "pod-security.kubernetes.io/warn": "restricted",
    }
