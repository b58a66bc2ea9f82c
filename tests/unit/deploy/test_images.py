"""Steps of a build trust the given authorities; tests build placeholders for the images of the stack."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from console.launch.services import jars
from dart_streams import java
from dart_streams.version import VERSION
from tests.compose.stand_ins import IMAGES
from tests.sources import CORE, ROOT

DESKTOP = ROOT / "deploy/docker/desktop.Dockerfile"
"""It is built on the streams image."""
DOCKERFILES = [path for path in sorted((ROOT / "deploy/docker").glob("*.Dockerfile")) if path != DESKTOP]
COMPOSE = (ROOT / "docker-compose.yml").read_text()
FETCHES = re.compile(r"pip install|uv pip sync|page-jars\.sh|\bmvn\b|\bcurl\b|\bnpm\b")
BUILT = "dart-streams/"


def steps(dockerfile: Path) -> list[str]:
    """Return the RUN steps, each on one line."""
    return re.findall(r"^RUN .*$", dockerfile.read_text().replace("\\\n", " "), re.MULTILINE)


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_every_step_that_fetches_over_tls_trusts_the_secret(dockerfile: Path):
    fetching = [step for step in steps(dockerfile) if FETCHES.search(step) and "--offline" not in step]
    assert fetching
    for step in fetching:
        assert step.startswith("RUN --mount=type=secret,id=ca "), step
        assert "trust.sh" in step or "page-jars.sh" in step, step


def test_the_desktop_image_adds_packages_of_debian_alone():
    assert re.findall(r"^(?:ARG|FROM) (\S+)", DESKTOP.read_text(), re.MULTILINE) == [
        "STREAMS=dart-streams/streams:dev",
        "${STREAMS}",
    ]
    assert not any(FETCHES.search(step) for step in steps(DESKTOP))


def test_every_build_of_the_stack_is_given_the_secret_or_an_empty_file():
    builds = re.findall(r"^  build:.*\n(?:    .*\n)*", COMPOSE, re.MULTILINE)
    assert len(builds) == len(DOCKERFILES)
    assert all("secrets: [ca]" in build for build in builds)
    default = re.search(r"DART_BUILD_CA:-([^}]+)\}", COMPOSE)
    assert default
    assert (ROOT / default[1]).read_text() == ""


def test_the_stand_ins_have_the_names_of_the_stack():
    pulled = {image for image in re.findall(r"^    image: (\S+)$", COMPOSE, re.MULTILINE) if BUILT not in image}
    texts = [path.read_text() for path in DOCKERFILES]
    bases = {image for text in texts for image in re.findall(r"^FROM (\S+)", text, re.MULTILINE)}
    bases -= {stage for text in texts for stage in re.findall(r" AS (\S+)$", text, re.MULTILINE)}
    made = {tag for tags in IMAGES.values() for tag in tags}
    assert made <= pulled | bases
    assert {image.partition(":")[0] for image in (pulled | bases) - made} == {
        "grafana/grafana",
        "ghcr.io/kafbat/kafka-ui",
    }


def test_the_image_has_the_plot_library_where_the_page_looks_for_it():
    dockerfile = (ROOT / "deploy/docker/streams.Dockerfile").read_text()
    assert f"COPY --from=page /jars /opt/venv/{jars.PLOTS.relative_to(sys.prefix)}" in dockerfile
    assert jars.PLUGIN in (ROOT / "deploy/docker/page-jars.sh").read_text()
    given = java.jar_folder("page", java.SHARED_JARS).name.rpartition("-")[2]
    assert f"cut -c 1-{len(given)})" in (ROOT / "deploy/docker/page-jars.sh").read_text()
    copied = {path for line in re.findall(r"^COPY (.*) \./$", dockerfile, re.MULTILINE) for path in line.split()}
    assert str((java.RECIPES / "page").relative_to(ROOT)) in copied
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert {"!deploy/local/page", "!deploy/docker/*.sh", "!.dart/jars/page-*"} <= set(ignored)


def test_the_version_is_that_of_the_package_and_needs_none_installed():
    """Code that is mounted over an installed wheel has a version of its own."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == VERSION
    asking = [path for name in CORE for path in (ROOT / name).rglob("*.py") if "metadata.version(" in path.read_text()]
    assert not asking


def test_a_changed_source_file_installs_no_requirement_again():
    for dockerfile in DOCKERFILES:
        text = dockerfile.read_text()
        requirements, final = text.index("uv pip sync"), text.rindex("\nFROM ")
        assert requirements < text.index("COPY topics") < text.index("uv build") < final
        assert not re.search(r"^COPY (topics|dart_streams|workers|trainer|console)\b", text[final:], re.MULTILINE)
