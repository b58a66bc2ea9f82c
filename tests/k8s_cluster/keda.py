"""KEDA on the node: its operator and metrics adapter from their Go module, with the module's own manifests."""

import json
from pathlib import Path

from dart_streams.errors import UserError
from tests.k8s_cluster.node import HOME, RUN, Node
from tests.k8s_cluster.program_image import write_image

IMAGES = {"keda": "ghcr.io/kedacore/keda", "keda-adapter": "ghcr.io/kedacore/keda-metrics-apiserver"}
TAG = "built"
PARTS = ("crd", "general", "rbac", "manager", "metrics-server", "service_account")
"""Of the module's manifests: without the webhooks, which only refuse faulty resources."""
PATCH = """
- {op: replace, path: /spec/template/spec/containers/0/imagePullPolicy, value: Never}
- {op: add, path: /spec/template/spec/securityContext/runAsUser, value: 1000}
- {op: replace, path: /spec/template/spec/containers/0/resources/requests, value: {cpu: 10m, memory: 64Mi}}
"""
"""Images of one program have no user, and the node has no registry."""


def keda_folder() -> Path | None:
    """Return the folder of KEDA's programs and manifests, None if it is not built."""
    built = sorted(HOME.glob("keda-*/built"))
    return built[-1].parent if built else None


def start_keda(node: Node) -> None:
    """Import KEDA's images and apply its manifests."""
    built = keda_folder()
    if built is None:
        raise UserError("KEDA is not built: run `make test-k8s-keda` as root")
    for program, image in IMAGES.items():
        archive = RUN / f"{program}.tar"
        write_image(archive, f"{image}:{TAG}", built / program)
        node.inside("ctr", "--namespace=k8s.io", "images", "import", str(archive))
        archive.unlink()
    folder = RUN / "keda"
    folder.mkdir()
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"../../{built.name}/config/{part}" for part in PARTS],
        "images": [{"name": image, "newTag": TAG} for image in IMAGES.values()],
        "patches": [{"target": {"kind": "Deployment"}, "patch": PATCH}],
    }
    (folder / "kustomization.yaml").write_text(json.dumps(kustomization))
    node.apply(folder)
    # Custom resources can be made once their definitions are known.
    node.inside("kubectl", "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")


def serves_metrics(node: Node) -> bool:
    """Return whether the API server has KEDA's metrics."""
    try:
        found = node.inside("kubectl", "get", "apiservice", "v1beta1.external.metrics.k8s.io", "--output=json")
    except UserError:
        return False
    conditions = json.loads(found).get("status", {}).get("conditions", [])
    return any(each["type"] == "Available" and each["status"] == "True" for each in conditions)
