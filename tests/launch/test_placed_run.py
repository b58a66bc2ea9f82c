"""A run on GPUs that nvidia-smi claims: its processes are those that the dry run has printed, with their devices."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from console.cli.options import read_config
from console.launch import process_registry, processes, run_start
from console.runs.run_folder import format_toml
from dart_streams import config as configuration
from tests.command_line import invoke_json
from tests.integration import model_program
from tests.integration.test_circle import HERE, circle_config

pytestmark = pytest.mark.timeout(1800)
NAME = "placed"


class Watcher(threading.Thread):
    """Notes the command line and the devices of each process that a supervisor starts."""

    def __init__(self, registry: Path) -> None:
        super().__init__(daemon=True)
        self.registry = registry
        self.seen: dict[str, tuple[list[str], str | None]] = {}
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.05):
            registry = process_registry.read(self.registry)
            for identity in registry.children if registry else ():
                if identity.name not in self.seen:
                    self.note(identity.name, identity.pid)

    def note(self, name: str, subreaper: int) -> None:
        """Note the process below a subreaper, once it has executed its command."""
        try:
            [process] = psutil.Process(subreaper).children()
            command = process.cmdline()
            if command and not any("subreaper" in word for word in command):
                self.seen[name] = (command, process.environ().get("CUDA_VISIBLE_DEVICES"))
        except (psutil.Error, ValueError):
            pass


@pytest.fixture
def file(services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration without numbers of processes, on a machine of four GPUs of which three are visible."""
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text("#!/bin/sh\nfor n in 0 1 2 3; do echo $n, GPU-$n, 81559; done\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{smi.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1,2")
    programs = model_program.write_programs(tmp_path)
    monkeypatch.setattr(processes, "find_programs", lambda: programs)
    config = circle_config(services, tmp_path / "state", episodes=0, train_steps=2, demonstrate=False)
    tables = configuration.tables.read_tables(HERE / "circle.toml", "")
    text = format_toml(config).replace('engine = "scripted"', 'engine = "vllm"', 1)
    assert tables["rollout"]["engine"] == "scripted"
    path = tmp_path / "c.toml"
    sized = ("workers = 2\n", "processes = 1\n")
    path.write_text("".join(line for line in text.splitlines(keepends=True) if line not in sized))
    (tmp_path / "circle-tasks.toml").write_text((HERE / "circle-tasks.toml").read_text())
    return path


def test_a_run_starts_what_the_dry_run_has_printed(file: Path, tmp_path: Path, capfd):
    printed: dict[str, dict[str, Any]] = {
        row["process"]: row for row in invoke_json("run", file, "--dry-run", "--id", NAME)["processes"]
    }
    assert not (tmp_path / "state").exists()
    folder = tmp_path / "state" / "runs" / NAME
    watcher = Watcher(folder / "processes.json")
    watcher.start()
    shown: list[str] = []
    keys = configuration.files.set_keys(file)
    run_start.start_run(read_config(file), NAME, shown.append, resume=False, keys=keys)
    watcher.ended.set()
    watcher.join()
    assert watcher.seen.keys() == printed.keys()
    for name, (command, devices) in watcher.seen.items():
        row = printed[name]
        assert command[-len(row["command"]) :] == row["command"], name
        assert devices == row["environment"]["CUDA_VISIBLE_DEVICES"], name
    assert {name: devices for name, (_, devices) in watcher.seen.items() if devices} == {
        "policy": "2",
        "rollout-0": "3",
        "rollout-1": "1",
        "trainer": "2",
    }
    assert "rollout-1: GPU 1 (unknown of 79.6 GiB)" in shown
    assert json.loads((folder / "report.json").read_text())["train_steps"] >= 2
