"""The tiny policy is built from demonstrations that an env worker plays and a recorder stores, on real services."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForImageTextToText

from console.runs.run_folder import write_toml
from dart_streams.config import Config, tasks
from dart_streams.errors import UserError
from dart_streams.policy import probe, recipe
from trainer.warmup import build

STREAMS = Path(sys.prefix).parent / "streams" / "bin" / "dart-streams"
STOP_S = 120
TASKS = """
[[pages]]
environment = "simulated"
page = "steps-2"
max_steps = 4
train_seeds = [0, 2]
heldout_seeds = [10, 12]
demonstration_seeds = [20, 32]
"""


def configured(services: Any, folder: Path, **overrides: dict[str, Any]) -> tuple[Config, Path]:
    (folder / "tasks.toml").write_text(TASKS)
    warmup = {"demonstrations": 12, "steps": 3, "batch": 2}
    config = services.config(
        tasks={"file": str(folder / "tasks.toml")},
        env={"backend": "simulated", "slots": 4},
        warmup=warmup,
        run={"state_dir": str(folder), "drain_s": 2.0},
        **overrides,
    )
    file = folder / "config.toml"
    write_toml(file, config)
    return config, file


@contextlib.contextmanager
def players(file: Path) -> Iterator[None]:
    """An env worker and a recorder, as the supervisor starts them for a build."""
    if not STREAMS.exists():
        pytest.skip(f"{STREAMS} is missing: run `make setup`")
    running = [subprocess.Popen([STREAMS, "worker", kind, "--config", file]) for kind in ("env", "recorder")]
    try:
        yield
    finally:
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def test_demonstrations_become_a_policy_once(services, tmp_path):
    config, file = configured(services, tmp_path)
    known = tasks.load(Path(config.tasks.file))
    folder = recipe.tiny_policy_folder(config, known)
    progress: list[tuple[int, int]] = []
    with players(file):
        build.build(config, known, folder, lambda finished, step, _: progress.append((finished, step)))
    assert progress[-1][1] == config.warmup.steps
    assert probe.read(folder) is not None
    AutoModelForImageTextToText.from_pretrained(folder)
    assert [place.name for place in folder.parent.iterdir()] == [folder.name]


def test_without_players_the_build_says_what_is_missing_and_leaves_nothing(services, tmp_path):
    config, _ = configured(services, tmp_path, evaluation={"timeout_s": 1.0})
    known = tasks.load(Path(config.tasks.file))
    folder = recipe.tiny_policy_folder(config, known)
    with pytest.raises(UserError, match="env worker and a recorder"):
        build.build(config, known, folder, lambda *_: None)
    assert list(folder.parent.iterdir()) == []


def test_a_build_from_imports_without_any_says_how_to_import_some(services, tmp_path):
    config, _ = configured(services, tmp_path)
    with pytest.raises(UserError, match="data import"):
        build.build(config, tasks.load(Path(config.tasks.file)), tmp_path / "policy", lambda *_: None, imported=True)
    assert not (tmp_path / "policy").exists()
