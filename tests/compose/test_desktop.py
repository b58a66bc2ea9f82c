"""The image for desktops: bubblewrap needs two rights in a container, and then real tasks are played there."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dart_desktops.desktop.command_line import TRIAL
from dart_streams.errors import UserError
from tests.compose import stand_ins
from tests.compose.company import company
from tests.compose.conftest import HOME
from tests.compose.engine import Engine
from tests.compose.stack import ROOT, Stack

pytestmark = pytest.mark.skipif(
    "DART_SLOW_TESTS" not in os.environ, reason="`make test-desktop-image` builds an image of 2.5 GB"
)
FILES = ("docker-compose.yml", "deploy/docker/desktop.yml")
TASKS = ROOT / "tests/compose/desktop"
INSIDE = "/etc/desktop"
CONFIG = f"{INSIDE}/desktop.toml"
IMAGE = "dart-streams/desktop:test"
BASE = ("run", "--rm", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--network=none", "--entrypoint=bwrap")
SECCOMP, PATHS = "--security-opt=seccomp=unconfined", "--security-opt=systempaths=unconfined"


@pytest.fixture(scope="module")
def desktops(docker: Engine) -> Iterator[Stack]:
    """The stack with the variant for desktops, its images built."""
    if docker.own:
        stand_ins.build(docker, HOME, ("python",))
    with tempfile.TemporaryDirectory() as folder, company(docker, Path(folder)) as proxy:
        made = Stack(docker, proxy.authority, FILES, CONFIG, "dart-streams-desktop-test")
        for service in ("recorder", "env"):
            made.compose("build", "--build-arg", f"HTTPS_PROXY={proxy.proxy}", service, timeout_s=2400)
        try:
            yield made
        finally:
            made.remove()


def is_sandboxed(docker: Engine, *rights: str) -> bool:
    """Return whether an empty sandbox starts in a container with these rights."""
    command = ["docker", *BASE, *rights, IMAGE, *TRIAL[1:-1], "--disable-userns", "--proc", "/proc", TRIAL[-1]]
    done = subprocess.run(command, env=docker.environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0 or "bwrap:" in done.stderr, done.stderr
    return done.returncode == 0


def test_a_sandbox_needs_system_calls_and_proc_and_no_capability(docker: Engine, desktops: Stack):
    assert is_sandboxed(docker, SECCOMP, PATHS)
    assert not is_sandboxed(docker, SECCOMP)
    assert not is_sandboxed(docker, PATHS)


@pytest.mark.timeout(1800)
def test_tasks_of_an_application_and_of_an_office_are_played(desktops: Stack):
    run = ("run", "--rm", "--no-deps", "-T", "--volume", f"{TASKS}:{INSIDE}:ro", "env")
    try:
        printed = desktops.compose(*run, "env", "check", "--config", CONFIG, timeout_s=1500)
    except UserError as error:
        pytest.fail(str(error))
    assert [line.split(" (")[0] for line in printed.splitlines()] == ["answer: ok", "sheet: ok"]
