"""The compose file: valid where Docker Compose can say so, and consistent with the configuration in any case."""

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from dart_streams import config

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "deploy/config/compose.toml"


def compose() -> list[str] | None:
    """Return the command of Docker Compose, if this machine has one."""
    if shutil.which("docker") and not subprocess.run(["docker", "compose", "version"], capture_output=True).returncode:
        return ["docker", "compose"]
    standalone = shutil.which("docker-compose")
    return [standalone] if standalone else None


@pytest.mark.skipif(compose() is None, reason="Docker Compose is not installed")
def test_docker_compose_accepts_the_file():
    command = [*(compose() or []), "-f", str(ROOT / "docker-compose.yml"), "config", "--quiet"]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_the_configuration_names_the_services_of_the_compose_file():
    settings = config.load(CONFIG)
    text = (ROOT / "docker-compose.yml").read_text()
    for host in (settings.bus.servers.split(":")[0], *settings.store.hosts):
        assert f"\n  {host}:\n" in text


def test_containers_train_with_the_settings_of_the_demonstration():
    ours, demo = (tomllib.loads((ROOT / f"deploy/config/{name}.toml").read_text()) for name in ("compose", "demo"))
    # Nobody can end the containers' training by the clock, as the supervisor of `make demo` does.
    assert ours["trainer"].pop("max_train_steps") > 0
    for table in ("tasks", "env", "policy", "warmup", "rollout", "trainer"):
        assert ours[table] == demo[table]
