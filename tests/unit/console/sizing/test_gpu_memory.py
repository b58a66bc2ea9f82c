"""Whether a model fits, from the headers of its files: the published sizes of one that people have, and the rules."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from dart_streams.config import Config, parse
from dart_streams.config.trainer import Lora, Publish
from dart_streams.console.cli import main
from dart_streams.console.cli.doctor_model import GpuFit, fit
from dart_streams.console.cli.options import read_config
from dart_streams.console.sizing import adapter_memory, gpu_memory, model_files
from dart_streams.console.sizing.gpu_memory import GIB
from dart_streams.errors import UserError
from tests.unit.console.sizing.model_directories import UI_TARS, UI_TARS_PARAMETERS, ui_tars, ui_tars_shapes, write

CONFIGS = Path(__file__).parents[4] / "deploy/config/ui-tars"
LINEAR = (
    (3584, 3584),
    (512, 3584),
    (512, 3584),
    (3584, 3584),
    (18944, 3584),
    (18944, 3584),
    (3584, 18944),
)
"""Linear layers of a layer of the language model, out and into."""
PAGE = Path(__file__).parents[4] / "docs/how-to/ui-tars.md"
MODEL = model_files.shape_of(UI_TARS, ui_tars_shapes())


def of(process: str, found: GpuFit) -> dict[str, float]:
    """Return what a process takes, by its name or the beginning of it; ``rollout`` is its GPU alone."""
    rows = [row for row in found.allocations if row.process.startswith(process)]
    return {row.what: row.gib for row in rows if process != "rollout" or row.process == process}


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
    trainer = of("trainer on", found)
    states = sum(trainer[what] for what in ("parameters", "gradients", "optimizer state (AdamW)"))
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
    for process in ("rollout", "trainer on"):
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


def with_lora(file: str, rank: int = 16, **trainer) -> Config:
    """Return a configuration of the page whose policy has adapters, published in bfloat16."""
    config = read_config(CONFIGS / file)
    settings = msgspec.structs.replace(config.trainer, lora=Lora(rank=rank), publish=Publish(dtype="bfloat16"))
    return msgspec.structs.replace(config, trainer=msgspec.structs.replace(settings, **trainer))


def test_adapters_have_the_number_of_parameters_that_is_known_by_hand():
    """Rank 16 on all linear layers of Qwen2.5-VL-7B's language model: 40.4 million, as peft prints."""
    layer = sum(out + into for out, into in LINEAR)
    adapted = adapter_memory.adapted_layers(MODEL.linear, Lora(rank=16))
    assert len(adapted) == 28 * len(LINEAR)
    assert adapter_memory.parameters(adapted, 16) == 16 * 28 * layer == 40_370_176
    assert adapter_memory.largest(adapted, 16) == 16 * layer
    assert adapter_memory.frozen(adapted) == 28 * sum(out * into for out, into in LINEAR)
    few = adapter_memory.adapted_layers(MODEL.linear, Lora(rank=16, targets=("self_attn.q_proj", "v_proj")))
    assert adapter_memory.parameters(few, 16) == 16 * 28 * (3584 + 3584 + 512 + 3584)


def test_with_adapters_only_they_have_gradients_and_optimizer_state(folder: Path):
    full, lora = (
        fit(folder, read_config(CONFIGS / "two-gpus.toml"), 2, 80.0),
        fit(folder, with_lora("two-gpus.toml"), 2, 80.0),
    )
    assert not full.fits
    assert (lora.rollout_gpus, lora.trainer_gpus) == (1, 1)
    trainer = of("trainer on", lora)
    assert trainer["parameters"] == pytest.approx(4 * (UI_TARS_PARAMETERS + 40_370_176) / GIB, abs=0.01)
    assert trainer["gradients"] == pytest.approx(4 * 40_370_176 / GIB, abs=0.01)
    assert trainer["optimizer state (AdamW)"] == pytest.approx(8 * 40_370_176 / GIB, abs=0.01)
    merged = 4 * (UI_TARS_PARAMETERS + 3 * 40_370_176 + 152064 * 3584 + adapter_memory.frozen(MODEL.linear))
    assert trainer["while a version is made"] == pytest.approx(merged / GIB + 1.5, abs=0.02)
    assert of("rollout", full)["sum"] == of("rollout", lora)["sum"], "vLLM knows of no adapter"


def test_a_rank_that_merges_what_it_has_no_room_for_does_not_fit():
    """A step has room where keeping the frozen matrices beside the merged ones has none."""
    config = with_lora("two-gpus.toml")
    step = gpu_memory.total(gpu_memory.trainer(MODEL, config, 1)) / GIB
    publishing = gpu_memory.publishing(MODEL, config, 1) / GIB
    assert step < 48 < publishing
    assert not gpu_memory.fits_trainer(MODEL, config, 48.0, 1)


def test_main_memory_is_counted_for_what_is_kept_from_version_to_version(folder: Path):
    def kept(config: Config) -> tuple[dict[str, float], dict[str, float]]:
        found = fit(folder, config, 8, 80.0)
        return of("rollout, main", found), of("trainer's rank 0", found)

    config, whole = read_config(CONFIGS / "eight-gpus.toml"), 2 * UI_TARS_PARAMETERS / GIB
    assert kept(config) == ({}, {})
    adapters = with_lora("eight-gpus.toml")
    deltas = msgspec.structs.replace(adapters.trainer, lora=Lora(), publish=Publish(dtype="bfloat16", full_every=10))
    rollout, trainer = kept(msgspec.structs.replace(adapters, trainer=deltas))
    assert (rollout["sum"], trainer["sum"]) == pytest.approx((whole, whole), abs=0.01)
    rollout, trainer = kept(adapters)
    assert (rollout["sum"], trainer["sum"]) == pytest.approx((2 * whole, whole), abs=0.01)
    vllm = msgspec.structs.replace(config.rollout.vllm, second_set="host")
    pinned = msgspec.structs.replace(config, rollout=msgspec.structs.replace(config.rollout, vllm=vllm))
    assert kept(pinned)[0]["second set of weights, pinned"] == pytest.approx(whole, abs=0.01)


@pytest.mark.parametrize(
    ("wanted", "gib", "place"), [("device", 80.0, "device"), ("device", 40.0, "host"), ("auto", 80.0, "none")]
)
def test_the_second_set_is_counted_where_the_key_puts_it(folder: Path, wanted: str, gib: float, place: str):
    config = read_config(CONFIGS / "eight-gpus.toml")
    vllm = msgspec.structs.replace(config.rollout.vllm, second_set=wanted)
    found = fit(
        folder, msgspec.structs.replace(config, rollout=msgspec.structs.replace(config.rollout, vllm=vllm)), 8, gib
    )
    assert found.second_set == place
    assert ("second set of weights" in of("rollout", found)) == (place == "device")
    assert ("second set of weights, pinned" in of("rollout, main", found)) == (place == "host")
    assert found.requests == (
        found.requests_with_second_set if place == "device" else fit(folder, config, 8, gib).requests
    )


def test_a_context_without_room_for_the_longest_prompt_is_said_and_fails(tmp_path: Path):
    small = ui_tars(tmp_path / "model")
    (small / "config.json").write_text(json.dumps(UI_TARS | {"max_position_embeddings": 512}))
    arguments = ["doctor", "--config", str(CONFIGS / "eight-gpus.toml"), "--model", str(small), "--gpus", "8"]
    done = CliRunner().invoke(main.build(arguments), arguments)
    assert done.exit_code == 1
    assert "It fits" in done.output
    assert "Its context is too small" in done.output


def test_a_target_that_the_model_does_not_have_is_named_with_those_it_has(folder: Path):
    config = parse({"trainer": {"lora": {"rank": 8, "targets": ["query"]}}})
    with pytest.raises(UserError, match=r"trainer\.lora\.targets: .*'query'; it has .*q_proj"):
        fit(folder, config, 2, 80.0)


@given(
    rank=st.integers(1, 512),
    gpus=st.integers(1, 16),
    targets=st.sets(st.sampled_from(["q_proj", "v_proj", "down_proj"])),
)
def test_adapters_never_take_more_than_full_training_while_they_are_small(rank: int, gpus: int, targets: set[str]):
    settings = {"lora": {"rank": rank, "targets": sorted(targets)}, "publish": {"dtype": "bfloat16"}}
    lora, full = parse({"trainer": settings}), parse({"trainer": {"publish": {"dtype": "bfloat16"}}})
    step = [gpu_memory.total(gpu_memory.trainer(MODEL, config, gpus)) for config in (lora, full)]
    assert step[0] < step[1]
    assert gpu_memory.publishing(MODEL, lora, gpus) < gpu_memory.publishing(MODEL, full, gpus)
    assert 0 < gpu_memory.trained(MODEL, lora) < gpu_memory.trained(MODEL, full)
