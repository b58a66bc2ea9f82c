"""One engine, one set of images, one stack."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.compose import stand_ins
from tests.compose.company import Company, company
from tests.compose.engine import Engine, engine
from tests.compose.stack import ROOT, Stack

HOME = ROOT / ".dart" / "compose-test"
Figures = dict[str, Any]


@pytest.fixture(scope="session")
def docker() -> Iterator[Engine]:
    with engine(HOME) as found:
        yield found


@pytest.fixture(scope="session")
def figures(pytestconfig: pytest.Config) -> Iterator[Figures]:
    """What is measured; it is printed, and kept, at the end."""
    measured: Figures = {}
    yield measured
    text = json.dumps(measured, indent=2)
    (HOME / "figures.json").write_text(text + "\n")
    with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\n{text}")  # noqa: T201


@pytest.fixture(scope="session")
def proxy(docker: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Company]:
    with company(docker, tmp_path_factory.mktemp("company")) as found:
        yield found


@pytest.fixture(scope="session")
def stack(docker: Engine, proxy: Company, figures: Figures) -> Iterator[Stack]:
    """The stack with nothing running, and its images built in a company's network; nothing is left of it afterwards."""
    if docker.own:
        began = time.monotonic()
        stand_ins.build(docker, HOME)
        figures["stand_ins_s"] = round(time.monotonic() - began, 1)
    built = Stack(docker, authority=proxy.authority)
    built.remove()
    began = time.monotonic()
    built.compose("build", "--build-arg", f"HTTPS_PROXY={proxy.proxy}", "env", timeout_s=1800)
    figures["build_s"] = round(time.monotonic() - began, 1)
    try:
        yield built
    finally:
        (HOME / "stack.log").write_text(built.logs())
        built.remove()
