"""A fine-tuned model solves held-out tasks that the model before could not, as runs without training measure it."""

import json
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dart_streams.config import parse
from dart_streams.console.runs.run_folder import write_toml

ROOT = Path(__file__).parents[2]
MODEL, STREAMS = ROOT / ".venv/model/bin", ROOT / ".venv/streams/bin/dart-streams"
EPISODES = 24
LIMIT_S = 420
TASKS = """
[[pages]]
environment = "simulated"
page = "box"
max_steps = 1
train_seeds = [0, 160]
heldout_seeds = [1000, 1024]
"""
SETTINGS: dict[str, Any] = {
    "run": {"minutes": 0.0, "drain_s": 20.0},
    "env": {"backend": "simulated", "slots": 8},
    "rollout": {"engine": "vllm", "max_in_flight": 8},
    "policy": {"max_images": 1, "max_texts": 0},
    "evaluation": {"episodes": EPISODES, "timeout_s": 240.0},
    "trainer": {"sft": {"epochs": 30, "batch": 16, "learning_rate": 2e-3, "heldout": 0.1}},
}

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not MODEL.is_dir(), reason="no environment .venv/model (make setup)"),
]


def command(*arguments: object) -> str:
    """Run a command, which must succeed; return its output."""
    done = subprocess.run(
        [str(part) for part in arguments], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def deployment(services: Any, folder: Path) -> Path:
    """Write a run's configuration, and an untrained model; return the file."""
    (folder / "tasks.toml").write_text(TASKS)
    code = f"from pathlib import Path\nfrom dart_streams.policy import tiny\ntiny.build(Path('{folder}/untrained'))"
    command(MODEL / "python", "-c", code)
    base, running = parse(SETTINGS), services.running
    replace = msgspec.structs.replace
    config = replace(
        base,
        bus=replace(base.bus, servers=running.bus.servers),
        store=replace(base.store, hosts=running.store.hosts, port=running.store.port, keyspace=services.keyspace),
        run=replace(base.run, state_dir=str(folder)),
        tasks=replace(base.tasks, file=str(folder / "tasks.toml")),
        policy=replace(base.policy, path=str(folder / "untrained")),
    )
    write_toml(folder / "config.toml", config)
    return folder / "config.toml"


def evaluated(file: Path, model: Path, name: str) -> tuple[int, int]:
    """Return the successes and episodes of a run without training that starts from ``model``."""
    command(STREAMS, "run", file, "--init", model, "--id", name)
    report = json.loads((file.parent / "runs" / name / "report.json").read_text())
    before = report["evaluation"]["before"]
    assert before["version"] == 0
    return round(before["rate"] * before["episodes"]), before["episodes"]


def test_fine_tuning_raises_the_success_on_held_out_tasks(services, tmp_path):
    file, model = deployment(services, tmp_path), tmp_path / "tuned"
    untrained = evaluated(file, tmp_path / "untrained", "before")
    bundle = tmp_path / "run.dart"
    command(STREAMS, "capture", "before", "--state", tmp_path, "--blobs", "-o", bundle)
    tune = (MODEL / "dart-streams", "train", "--config", file, "--sft", bundle, "--output", model, "--json")
    result = json.loads(command(*tune))
    assert result["data"]["trajectories"] == 160
    assert result["after"]["nll"] < result["before"]["nll"]
    assert untrained[1] == EPISODES
    tuned, episodes = evaluated(file, model, "after")
    assert episodes == EPISODES
    assert tuned >= untrained[0] + EPISODES // 4
