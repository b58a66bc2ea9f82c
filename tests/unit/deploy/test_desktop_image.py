"""The image for desktops has the packages that `make desktop` installs, and the rights that pods get."""

import re

import yaml

from tests.sources import ROOT


def test_the_image_has_the_packages_of_the_installer():
    script = (ROOT / "deploy/local/setup.sh").read_text()
    body = script[script.index("missing_desktop() {") : script.index("# Applications of OSWorld's tasks")]
    pairs = re.findall(r"(?<![\w/])[\w.-]+:([a-z][a-z0-9-]+)", body)
    said = re.findall(r'echo "([a-z0-9-]+):', body)
    dockerfile = (ROOT / "deploy/docker/desktop.Dockerfile").read_text()
    (installed,) = re.findall(r"--no-install-recommends \\\n(.*?)\n    &&", dockerfile, re.DOTALL)
    assert set(installed.replace("\\", "").split()) == {*pairs, *said}


def test_compose_and_pods_give_sandboxes_the_same_rights():
    compose = yaml.safe_load((ROOT / "deploy/docker/desktop.yml").read_text().replace("!reset", ""))
    compose = compose["services"]["env"]["security_opt"]
    pod = yaml.safe_load((ROOT / "deploy/k8s/components/desktop/env.yaml").read_text())["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    context = container["securityContext"]
    named = {"seccomp": "seccompProfile", "apparmor": "appArmorProfile"}
    rights = dict(option.split("=") for option in compose)
    assert {name: context[field]["type"].lower() for name, field in named.items()} == {
        name: rights[name] for name in named
    }
    assert (rights.keys() - named.keys(), context["procMount"]) == ({"systempaths"}, "Unmasked")
    assert pod["hostUsers"] is False
