"""Supervised fine-tuning before a run: tiny models of several families, resume after a kill, ranks, and lineage."""

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dart_data.sft.job import lock_folder
from dart_streams import crash_points
from dart_streams.errors import UserError
from dart_streams.policy import tiny
from dart_streams.policy.rendering import Renderer
from plugins.data.tests.sft_data import demonstrations, write_lines
from tests.command_line import invoke, invoke_json
from tests.model.families import FAMILIES
from tests.model.forkserver import be_command, spawning
from tests.model.test_trainer_run import ended, is_stopped, until

SETTINGS: dict[str, Any] = {"steps": 24, "batch": 8, "learning_rate": 2e-3, "heldout": 0.2, "checkpoint_every": 4}


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


def words(config: Path, data: Path, output: Path) -> tuple[object, ...]:
    return ("train", "--config", config, "--sft", data, "--output", output)


def tune(config: Path, data: Path, output: Path) -> dict[str, Any]:
    """Fine-tune in this process; return what the command prints."""
    found: dict[str, Any] = invoke_json(*words(config, data, output))
    return found


@contextlib.contextmanager
def tuning(crash_point: str, config: Path, data: Path, output: Path) -> Iterator[BaseProcess]:
    """Fine-tune in a process of its own, which is killed or stopped at a point, if any."""
    given = {"crash_point": crash_point}
    process = spawning.Process(target=be_command, args=words(config, data, output), kwargs=given)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def whole(policy: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """What an undisturbed fine-tuning prints, and its model."""
    folder = tmp_path_factory.mktemp("whole")
    return tune(configured(folder, policy), data, folder / "out"), folder / "out"


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


def test_a_killed_fine_tuning_continues_to_the_same_weights(whole, policy, data, tmp_path):
    """Stopped by a signal and refused with other data, killed in its next checkpoint but one, run to the end."""
    expected, model = whole
    config, output = configured(tmp_path, policy), tmp_path / "cut"
    with tuning(f"{crash_points.IN_CHECKPOINT}:2:{crash_points.STOP}", config, data, output) as process:
        until(lambda: is_stopped(process), "the second checkpoint")
        process.terminate()
        os.kill(process.pid or 0, signal.SIGCONT)
        assert ended(process) == 1
    assert kept(output) == [4, 8]
    other = write_lines(tmp_path / "other.jsonl", demonstrations(tmp_path, 9))
    refused = invoke(*words(config, other, output))
    assert isinstance(refused.exception, UserError) and "other data" in str(refused.exception)
    with tuning(f"{crash_points.IN_CHECKPOINT}:2", config, data, output) as process:
        assert ended(process) == -signal.SIGKILL
    assert kept(output) == [8, 12]
    assert not output.exists()
    resumed = tune(config, data, output)
    assert (resumed["before"], resumed["steps"]) == (expected["before"], expected["steps"])
    first, second = weights_of(model), weights_of(output)
    assert all(torch.equal(first[name], second[name]) for name in first)


def kept(output: Path) -> list[int]:
    """Return the steps of the checkpoints of a model that is not made yet."""
    checkpoints = output.with_name(f".{output.name}.sft") / "checkpoints"
    return sorted(int(place.name.rpartition("-")[2]) for place in checkpoints.glob("epoch-*"))


def test_two_ranks_make_the_weights_of_one(policy, data, tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    alone = tune(configured(tmp_path / "one", policy, steps=6), data, tmp_path / "one" / "out")
    shared = configured(tmp_path / "two", policy, "processes = 2", steps=6)
    with tuning("", shared, data, tmp_path / "two" / "out") as launcher:
        assert ended(launcher) == 0
    both = json.loads((tmp_path / "two" / "out" / "sft.json").read_text())
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
        refused = invoke(*words(config, data, tmp_path / "out"))
    assert isinstance(refused.exception, UserError)
    assert error in str(refused.exception)
    assert "\n" not in str(refused.exception)
    assert work.exists() == (case == "in use")


def test_a_vision_tower_can_stay_frozen(data, tmp_path):
    tiny.build(tmp_path / "model", architecture="qwen3_vl")
    config = configured(tmp_path, tmp_path / "model", "freeze_vision = true\nrecompute = true", steps=4)
    tune(config, data, tmp_path / "out")
    before, after = weights_of(tmp_path / "model"), weights_of(tmp_path / "out")
    assert all(torch.equal(before[name], after[name]) for name in before if "visual" in name)
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_chunks_of_the_head_and_offload_give_the_same_measures(whole, policy, data, tmp_path):
    plain, _ = whole
    keys = 'head_tokens = 5\noffload = "all"\nrecompute = true'
    saved = tune(configured(tmp_path, policy, keys), data, tmp_path / "out")
    assert saved["before"] == pytest.approx(plain["before"], rel=1e-4)
    assert saved["after"] == pytest.approx(plain["after"], rel=1e-2)
    assert saved["after"]["equal_actions"] > 0.5
