"""Whether a model fits, from the headers of its files: the published sizes of one that people have, and the rules."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from dart_streams.cli import main
from dart_streams.cli.doctor_model import GpuFit, fit
from dart_streams.cli.options import read_config
from dart_streams.config import Config, parse
from dart_streams.errors import UserError
from dart_streams.launch import gpu_memory, model_files
from dart_streams.launch.gpu_memory import GIB
from tests.unit.launch.model_directories import UI_TARS, UI_TARS_PARAMETERS, ui_tars, ui_tars_shapes, write

CONFIGS = Path(__file__).parents[3] / "deploy/config/ui-tars"
PAGE = Path(__file__).parents[3] / "docs/how-to/ui-tars.md"
MODEL = model_files.shape_of(UI_TARS, ui_tars_shapes())


def of(process: str, found: GpuFit) -> dict[str, float]:
    return {row.what: row.gib for row in found.allocations if row.process.startswith(process)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ui_tars(tmp_path_factory.mktemp("models") / "UI-TARS-1.5-7B")


def test_a_model_is_read_from_the_headers_of_all_its_files(folder: Path):
    found = model_files.read(folder)
    assert found == MODEL
    assert found.parameters == UI_TARS_PARAMETERS
    assert found.bits == 16
    assert found.pixels_per_token == 28 * 28
    assert found.largest_tensor == 152064 * 3584


def test_what_is_known_of_the_model_by_hand(folder: Path):
    """16 bytes a parameter in training, 2 in serving, 56 KiB of cache a token."""
    found = fit(folder, Config(), 2, 192.0)
    trainer = of("trainer", found)
    states = sum(trainer[what] for what in ("parameters", "gradients", "optimiser state (AdamW)"))
    assert states == pytest.approx(16 * UI_TARS_PARAMETERS / GIB, abs=0.02)
    assert of("rollout", found)["weights"] == pytest.approx(2 * UI_TARS_PARAMETERS / GIB, abs=0.01)
    assert gpu_memory.cache_token(MODEL) == 2 * 28 * 4 * 128 * 2


@pytest.mark.parametrize(
    ("file", "gpus", "gib", "split"),
    [("eight-gpus.toml", 8, 80.0, (4, 4)), ("two-gpus.toml", 2, 178.0, (1, 1))],
)
def test_the_configurations_of_the_page_fit_where_it_says_and_use_what_fits(folder, file, gpus, gib, split):
    config = read_config(CONFIGS / file)
    found = fit(folder, config, gpus, gib)
    assert (found.rollout_gpus, found.trainer_gpus) == split
    assert (config.rollout.workers, config.trainer.processes) == split
    assert config.trainer.micro_batch_tokens >= found.sequence_tokens, "a row of full length fits into a micro-batch"
    assert found.requests >= 1
    text = PAGE.read_text()
    for process in ("rollout", "trainer"):
        assert f"{of(process, found)['sum']:.1f} GiB" in text, "the page says what the command says"
    assert f"{found.requests} requests" in text


@pytest.mark.parametrize("gib", [24.0, 80.0, 141.0])
def test_full_training_does_not_fit_on_one_gpu_and_the_advice_is_a_number_of_gpus_that_does(folder, gib):
    config = read_config(CONFIGS / "eight-gpus.toml")
    found = fit(folder, config, 1, gib)
    assert not found.fits
    assert found.advice
    if gib == 24.0:
        assert "larger" in found.advice[0]


def test_the_page_of_one_gpu_serves_it_on_24_gib(folder: Path):
    config = read_config(CONFIGS / "one-gpu.toml")
    assert config.run.minutes == 0
    assert gpu_memory.requests_at_once(MODEL, config, 24.0) >= 1


def test_what_is_advised_fits():
    """Each advice that names keys: those keys, set, fit."""
    kept = parse({"trainer": {"processes": 4}, "policy": {"max_pixels": 2_116_800, "max_images": 5, "max_tokens": 500}})
    [advised] = gpu_memory.advice(MODEL, kept, 8, 80.0)
    assert advised == 'set trainer.dtype = "bfloat16" and trainer.recompute = true'
    changed = msgspec.structs.replace(kept.trainer, dtype="bfloat16", recompute=True)
    assert gpu_memory.split(MODEL, kept, 8, 80.0) is None
    assert gpu_memory.split(MODEL, msgspec.structs.replace(kept, trainer=changed), 8, 80.0) is not None


def test_a_second_set_of_weights_takes_its_room_from_the_cache():
    alone, both = (gpu_memory.cache_blocks(MODEL, Config(), 80.0, second) for second in (False, True))
    assert (alone - both) * 16 * gpu_memory.cache_token(MODEL) == pytest.approx(2 * UI_TARS_PARAMETERS, rel=1e-3)


@given(gpus=st.integers(2, 64), gib=st.floats(8, 256), pixels=st.integers(3136, 4_000_000), recompute=st.booleans())
def test_more_memory_or_more_gpus_never_fit_less(gpus: int, gib: float, pixels: int, recompute: bool):
    config = parse({"policy": {"max_pixels": pixels}, "trainer": {"dtype": "bfloat16", "recompute": recompute}})
    found = gpu_memory.split(MODEL, config, gpus, gib)
    if found is not None:
        assert found.rollout + found.trainer == gpus
        more = gpu_memory.split(MODEL, config, gpus + 1, gib * 1.1)
        assert more is not None
        assert more.trainer <= found.trainer
        assert more.requests >= found.requests
    else:
        assert gpu_memory.advice(MODEL, config, gpus, gib)


def test_the_command_prints_the_answer_and_fails_where_it_does_not_fit(folder: Path):
    arguments = ["doctor", "--config", str(CONFIGS / "eight-gpus.toml"), "--model", str(folder), "--gpus"]
    fits = CliRunner().invoke(main.build([*arguments, "8"]), [*arguments, "8", "--gpu-memory", "80"])
    assert fits.exit_code == 0, fits.output
    assert "4 GPUs for rollout (rollout.workers = 4), 4 for the trainer (trainer.processes = 4)" in fits.output
    small = CliRunner().invoke(main.build([*arguments, "2"]), [*arguments, "2", "--gpu-memory", "80", "--json"])
    assert small.exit_code == 1
    assert json.loads(small.stdout)["fits"] is False


def test_a_directory_that_does_not_say_its_size_is_refused_with_what_is_missing(tmp_path: Path):
    with pytest.raises(UserError, match=r"no config\.json"):
        model_files.read(tmp_path)
    shapes = {"model.layers.0.w": [2, 2]}
    with pytest.raises(UserError, match=r"no \*\.safetensors"):
        model_files.read(write(tmp_path / "a", UI_TARS))
    with pytest.raises(UserError, match="no vision_config"):
        model_files.read(write(tmp_path / "b", {"model_type": "llama"}, shapes))
    with pytest.raises(UserError, match="mixture of experts"):
        model_files.read(write(tmp_path / "c", UI_TARS | {"num_experts": 8}, shapes))
    with pytest.raises(UserError, match="hidden_size"):
        model_files.read(write(tmp_path / "d", UI_TARS | {"hidden_size": None}, shapes))
    broken = write(tmp_path / "e", UI_TARS, shapes)
    for data in (b"", b"\xff" * 64, (12).to_bytes(8, "little") + b'{"a": {}}   ', (2).to_bytes(8, "little") + b"[]"):
        (broken / "model-0.safetensors").write_bytes(data)
        with pytest.raises(UserError, match="no safetensors file"):
            model_files.read(broken)
