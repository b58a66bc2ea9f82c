"""The compose file is consistent with the configuration; tests/compose/test_files.py asks Docker Compose itself."""

import re
import subprocess

import msgspec

from dart_streams import config
from dart_streams.config import hardware
from tests.sources import ROOT

CONFIG = ROOT / "deploy/config/compose.toml"
COMPOSE_FILE = ROOT / "docker-compose.yml"


def test_what_can_be_set_is_in_the_example_with_its_default():
    set_here = set(re.findall(r"\$\{(\w+):-([^}]*)\}", COMPOSE_FILE.read_text()))
    lines = (ROOT / ".env.example").read_text().splitlines()
    assert {tuple(line.split("=", 1)) for line in lines if "=" in line and not line.startswith("#")} == set_here


def test_ports_are_on_loopback_and_only_deploy_is_mounted():
    text = COMPOSE_FILE.read_text()
    published = re.findall(r"ports: *\[([^]]*)\]", text)
    assert text.count("ports:") == len(published), "write ports in one line: ports: [...]"
    assert all(port.strip(" \"'").startswith("127.0.0.1:") for ports in published for port in ports.split(","))
    assert all(folder.startswith("./deploy/") for folder in re.findall(r"[\"' [](\.{1,2}/[^\"':]*):", text))
    assert "./deploy/config:" in text


def test_images_have_no_secrets():
    """Whatever lies in deploy/secrets or .env, neither an image's context nor a commit takes it along."""
    kept = (ROOT / ".dockerignore").read_text().splitlines()
    assert kept[0] == "*"
    deployed = {line for line in kept if line.startswith("!deploy")}
    assert deployed == {"!deploy/config", "!deploy/docker/*.sh", "!deploy/local/page"}
    hidden = ["deploy/secrets/kafka", "deploy/secrets/env/client.key", ".env"]
    ignored = subprocess.run(["git", "check-ignore", *hidden], cwd=ROOT, capture_output=True, text=True)
    assert ignored.stdout.split() == hidden


def test_with_services_elsewhere_neither_is_started_nor_waited_for():
    over = (ROOT / "deploy/docker/outside.yml").read_text()
    assert all(f"  {name}: {{profiles: [never]}}\n" in over for name in ("kafka", "cassandra"))
    waiting = re.findall(
        r"^  ([a-z-]+):\n(?:    .*\n)*?      (?:kafka|cassandra): {condition", COMPOSE_FILE.read_text(), re.M
    )
    assert waiting == ["topics-apply", "schema-apply"]
    assert all(f"  {name}:\n    depends_on: !reset {{}}\n" in over for name in waiting)


def test_the_configuration_names_the_services_of_the_compose_file():
    settings = config.load(CONFIG)
    text = COMPOSE_FILE.read_text()
    for host in (settings.bus.servers.split(":")[0], *settings.store.hosts):
        assert f"\n  {host}:\n" in text


def test_containers_train_with_the_settings_of_the_demonstration(monkeypatch):
    """The containers' sizes are those of the demonstration on two cores."""
    monkeypatch.setattr(hardware, "read_machine", lambda: hardware.MachineSize(cores=2, memory_gib=24.0, gpu=False))
    ours, demo = (config.load(ROOT / f"deploy/config/{name}.toml") for name in ("compose", "demo"))
    # No process can end the containers' training by the clock, as the supervisor of `make demo` does.
    assert ours.trainer.max_train_steps > 0
    endless = msgspec.structs.replace(ours.trainer, max_train_steps=demo.trainer.max_train_steps)
    assert msgspec.structs.replace(ours, trainer=endless).trainer == demo.trainer
    for table in ("tasks", "env", "policy", "warmup", "rollout"):
        assert getattr(ours, table) == getattr(demo, table)
