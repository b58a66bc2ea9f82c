"""Supervised fine-tuning before a run: tiny models of several families, resume after a kill, ranks, and lineage."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dart_streams.policy import tiny
from dart_streams.policy.rendering import Renderer
from tests.model.families import FAMILIES
from tests.sft_data import demonstrations, write_lines
from trainer.sft.job import lock_folder

BIN = Path(sys.executable).with_name("dart-streams")
LIMIT_S = 240
SETTINGS: dict[str, Any] = {"steps": 24, "batch": 8, "learning_rate": 2e-3, "heldout": 0.2, "checkpoint_every": 4}

Tuned = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    return write_lines(folder / "set.jsonl", demonstrations(folder, 18))


def configured(folder: Path, model: Path, trainer: str = "", **changed: Any) -> Path:
    """Write a configuration; ``trainer`` are further lines of its table."""
    sft = "\n".join(f"{key} = {value}" for key, value in (SETTINGS | changed).items())
    file = folder / "config.toml"
    file.write_text(
        f'[run]\nstate_dir = "{folder}/.dart"\n[policy]\npath = "{model}"\n'
        f"[trainer]\nmicro_batch = 8\n{trainer}\n[trainer.sft]\n{sft}\n"
    )
    return file


def command(config: Path, data: Path, output: Path) -> list[str]:
    return [str(BIN), "train", "--config", str(config), "--sft", str(data), "--output", str(output), "--json"]


def tune(config: Path, data: Path, output: Path) -> dict[str, Any]:
    done = subprocess.run(command(config, data, output), capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_of_each_family_learns_held_out_actions(family, data, tmp_path):
    FAMILIES[family](tmp_path / "model")
    config = configured(tmp_path, tmp_path / "model", learning_rate=4e-3, steps=30)
    result = tune(config, data, tmp_path / "out")
    assert result["after"]["nll"] < 0.5 * result["before"]["nll"]
    assert result["after"]["equal_actions"] > result["before"]["equal_actions"] == 0.0
    assert result["before"]["answers"] == result["after"]["answers"] == 2 * result["heldout_trajectories"] == 8
    limits = (3136, 1_003_520)
    assert Renderer(tmp_path / "out", *limits).eos == Renderer(tmp_path / "model", *limits).eos
    assert {name: value.dtype for name, value in weights_of(tmp_path / "out").items()} == {
        name: value.dtype for name, value in weights_of(tmp_path / "model").items()
    }
    assert json.loads((tmp_path / "out" / "sft.json").read_text()) == result
    assert sorted(place.name for place in tmp_path.iterdir() if "sft" in place.name) == []


def test_a_killed_fine_tuning_continues_to_the_same_weights(policy, data, tmp_path):
    config = configured(tmp_path, policy)
    whole = tune(config, data, tmp_path / "whole")
    process = subprocess.Popen(command(config, data, tmp_path / "cut"), stderr=subprocess.DEVNULL)
    checkpoints = tmp_path / ".cut.sft" / "checkpoints"
    deadline = time.monotonic() + LIMIT_S
    while not any(checkpoints.glob("epoch-*-step-00000008")) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "cut").exists()
    resumed = tune(config, data, tmp_path / "cut")
    assert (resumed["before"], resumed["steps"]) == (whole["before"], whole["steps"])
    first, second = weights_of(tmp_path / "whole"), weights_of(tmp_path / "cut")
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_checkpoints_of_other_data_are_not_continued(policy, data, tmp_path):
    config = configured(tmp_path, policy)
    process = subprocess.Popen(command(config, data, tmp_path / "out"), stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + LIMIT_S
    while not any((tmp_path / ".out.sft" / "checkpoints").glob("epoch-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 1
    other = write_lines(tmp_path / "other.jsonl", demonstrations(tmp_path, 9))
    done = subprocess.run(command(config, other, tmp_path / "out"), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "other data" in done.stderr


def test_two_ranks_make_the_weights_of_one(policy, data, tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    alone = tune(configured(tmp_path / "one", policy, steps=6), data, tmp_path / "one" / "out")
    shared = configured(tmp_path / "two", policy, "processes = 2", steps=6)
    both = tune(shared, data, tmp_path / "two" / "out")
    assert both["after"]["nll"] == pytest.approx(alone["after"]["nll"], rel=1e-3)
    assert both["before"] == pytest.approx(alone["before"], rel=1e-5)


def test_lora_trains_adapters_and_merges_them(policy, data, tmp_path):
    config = configured(tmp_path, policy, "lora = { rank = 8, alpha = 16 }", learning_rate=1e-2)
    result = tune(config, data, tmp_path / "out")
    assert result["after"]["nll"] < 0.7 * result["before"]["nll"]
    before, after = weights_of(policy), weights_of(tmp_path / "out")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert not [name for name in changed if "visual" in name or "embed" in name or "norm" in name]


@pytest.mark.parametrize(
    ("case", "error"),
    [
        ("output exists", "exists: remove it, or name another directory"),
        ("all too long", "policy.max_tokens is 3"),
        ("in use", "another process trains in"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_one_line(policy, data, tmp_path, case, error):
    config = configured(tmp_path, policy)
    work = tmp_path / ".out.sft"
    with contextlib.ExitStack() as life:
        if case == "output exists":
            (tmp_path / "out").mkdir()
        elif case == "all too long":
            config.write_text(config.read_text().replace("[policy]", "[policy]\nmax_tokens = 3"))
        else:
            work.mkdir()
            life.enter_context(lock_folder(work))
        done = subprocess.run(command(config, data, tmp_path / "out"), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert error in done.stderr.splitlines()[-1]
    assert work.exists() == (case == "in use")


def test_a_vision_tower_can_stay_frozen(data, tmp_path):
    tiny.build(tmp_path / "model", architecture="qwen3_vl")
    config = configured(tmp_path, tmp_path / "model", "freeze_vision = true\nrecompute = true", steps=4)
    tune(config, data, tmp_path / "out")
    before, after = weights_of(tmp_path / "model"), weights_of(tmp_path / "out")
    assert all(torch.equal(before[name], after[name]) for name in before if "visual" in name)
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_chunks_of_the_head_and_offload_give_the_same_measures(policy, data, tmp_path):
    (tmp_path / "plain").mkdir()
    (tmp_path / "saved").mkdir()
    plain = tune(configured(tmp_path / "plain", policy), data, tmp_path / "plain" / "out")
    keys = 'head_tokens = 5\noffload = "all"\nrecompute = true'
    saved = tune(configured(tmp_path / "saved", policy, keys), data, tmp_path / "saved" / "out")
    assert saved["before"] == pytest.approx(plain["before"], rel=1e-4)
    assert saved["after"] == pytest.approx(plain["after"], rel=1e-2)
    assert saved["after"]["equal_actions"] > 0.5
