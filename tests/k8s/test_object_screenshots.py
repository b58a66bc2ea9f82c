"""The component for screenshots in an object store: keys by workload, and egress to one address."""

import json
from pathlib import Path

import pytest
import yaml

from tests.k8s.test_manifests import HOME, K8S, Resource, resources, up
from tests.k8s.test_operation import container_of, reached, workloads

pytestmark = pytest.mark.skipif(
    not (HOME / "schemas").is_dir(), reason="`make test-k8s` sets up kustomize and the schemas"
)
COMPONENT = K8S / "components/object-screenshots"
WRITERS, READERS = {"env", "trainer"}, {"rollout", "trainer", "ui", "policy"}


@pytest.fixture(scope="module", params=["base", "overlays/gpu"])
def rendered(request, tmp_path_factory) -> list[Resource]:
    folder = tmp_path_factory.mktemp("overlay")
    parts = {"resources": [up(folder, K8S / request.param)], "components": [up(folder, COMPONENT)]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(parts))
    return resources(folder)


def sources(workload: Resource) -> list[str]:
    return [source["secretRef"]["name"] for source in container_of(workload)["envFrom"]]


def test_each_workload_that_needs_screenshots_has_keys_of_its_own(rendered: list[Resource]):
    for name, workload in workloads(rendered).items():
        keys = [source for source in sources(workload) if source.startswith("screenshots-")]
        assert keys == ([f"screenshots-{name}"] if name in WRITERS | READERS else []), name


def test_keys_of_weights_replace_those_of_screenshots(rendered: list[Resource]):
    """A process has one pair of keys, which the last secret gives."""
    for name in ("trainer", "rollout"):
        others = sources(workloads(rendered)[name])[1:]
        assert others[0] == f"dart-streams-{name}"
        assert set(others[1:]) <= {"object-store"}


def test_egress_of_env_pods_is_one_address_more(rendered: list[Resource]):
    policies = [r for r in rendered if r["kind"] == "NetworkPolicy"]
    reach = {
        name: [peer["ipBlock"]["cidr"] for peer, _ in reached(policies, {**labels_of(workload)}) if "ipBlock" in peer]
        for name, workload in workloads(rendered).items()
    }
    (policy,) = (r for r in policies if r["metadata"]["name"] == "object-screenshots")
    (place,) = policy["spec"]["egress"][0]["to"]
    address = place["ipBlock"]["cidr"]
    assert address.endswith("/32")
    assert reach["env"] == reach["ui"] == [address]
    assert {name for name, places in reach.items() if address in places} == (WRITERS | READERS) & reach.keys()


def labels_of(workload: Resource) -> dict[str, str]:
    labels: dict[str, str] = workload["spec"]["template"]["metadata"]["labels"]
    return labels


def test_the_bucket_policy_names_the_workloads_with_keys():
    of = {
        each["Sid"]: set(each["Principal"]["AWS"])
        for each in json.loads((COMPONENT / "rights.json").read_text())["Statement"]
    }
    assert of == {"write": WRITERS, "read": READERS, "list": READERS}
    assert Path(COMPONENT / "kustomization.yaml").read_text().count("secretRef") == len(WRITERS | READERS)
