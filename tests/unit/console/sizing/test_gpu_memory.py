"""Memory estimates of a published model, UI-TARS-1.5-7B, from its config.json and its safetensors headers."""

import json
import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from console.cli import main
from console.cli.doctor_model import GpuFit, fit
from console.cli.options import read_config
from console.sizing.gpu_memory import GIB, MemoryEstimate, total_bytes
from console.sizing.model_files import read_shape, shape_of
from dart_streams.config import Config, parse
from dart_streams.config.trainer import Lora, Publish
from dart_streams.errors import UserError
from tests.unit.console.sizing.model_directories import UI_TARS, UI_TARS_PARAMETERS, ui_tars, ui_tars_shapes, write

CONFIGS = Path(__file__).parents[4] / "deploy/config/ui-tars"
LINEAR = ((3584, 3584), (512, 3584), (512, 3584), (3584, 3584), (18944, 3584), (18944, 3584), (3584, 18944))
"""Outputs and inputs of the linear layers in a layer of the language model."""
ADAPTERS = 40_370_176
"""Parameters of adapters of rank 16 on all linear layers, as peft prints them."""
PAGE = Path(__file__).parents[4] / "docs/how-to/ui-tars.md"
MODEL = shape_of(UI_TARS, ui_tars_shapes())


def gib_of(process: str, found: GpuFit) -> dict[str, float]:
    """Return the GiB of a process's allocations; ``process`` is its name or the beginning of it."""
    rows = [row for row in found.allocations if row.process.startswith(process)]
    return {row.what: row.gib for row in rows if process != "rollout" or row.process == process}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ui_tars(tmp_path_factory.mktemp("models") / "UI-TARS-1.5-7B")


def with_vllm(config: Config, **vllm) -> Config:
    settings = msgspec.structs.replace(config.rollout.vllm, **vllm)
    return msgspec.structs.replace(config, rollout=msgspec.structs.replace(config.rollout, vllm=settings))


def with_lora(file: str, rank: int = 16, **trainer) -> Config:
    """Return a configuration of the page whose policy has adapters, published in bfloat16."""
    config = read_config(CONFIGS / file)
    settings = msgspec.structs.replace(config.trainer, lora=Lora(rank=rank), publish=Publish(dtype="bfloat16"))
    return msgspec.structs.replace(config, trainer=msgspec.structs.replace(settings, **trainer))


def run_doctor(folder: Path, gpus: int, *options: str):
    config = str(CONFIGS / "eight-gpus.toml")
    arguments = ["doctor", "--config", config, "--model", str(folder), "--gpus", str(gpus), *options]
    return CliRunner().invoke(main.build_app(arguments), arguments)


def test_the_shape_is_read_from_the_headers_of_all_files(folder: Path):
    shape = read_shape(folder)
    assert shape == MODEL
    assert shape.parameters == UI_TARS_PARAMETERS
    assert shape.width == 2
    assert shape.pixels_per_token == 28 * 28
    assert shape.largest_tensor == 152064 * 3584


def test_training_takes_16_bytes_a_parameter_and_serving_2(folder: Path):
    found = fit(folder, Config(), 2, 192.0)
    trainer = gib_of("trainer on", found)
    states = sum(trainer[what] for what in ("parameters", "gradients", "optimizer state (AdamW)"))
    assert states == pytest.approx(16 * UI_TARS_PARAMETERS / GIB, abs=0.02)
    assert gib_of("rollout", found)["weights"] == pytest.approx(2 * UI_TARS_PARAMETERS / GIB, abs=0.01)
    assert MemoryEstimate(MODEL, Config()).cache_token == 2 * 28 * 4 * 128 * 2


@pytest.mark.parametrize(
    ("file", "gpus", "split"),
    [("eight-gpus.toml", 8, (4, 4)), ("three-gpus.toml", 3, (2, 1)), ("two-gpus.toml", 2, (1, 1))],
)
def test_the_configurations_of_the_page_fit_as_the_page_says(folder, file, gpus, split):
    config = read_config(CONFIGS / file)
    found = fit(folder, config, gpus, 80.0)
    assert (found.rollout_gpus, found.trainer_gpus) == split
    assert (config.rollout.workers, config.trainer.processes) == split
    assert config.trainer.micro_batch_tokens >= found.sequence_tokens, "a row of full length fits into a micro-batch"
    assert found.requests >= 1
    text = PAGE.read_text()
    for process in ("rollout", "trainer on"):
        assert f"{gib_of(process, found)['sum']:.1f} GiB" in text
    assert f"{found.requests} requests" in text


@pytest.mark.parametrize("gib", [24.0, 80.0, 141.0])
def test_full_training_on_one_gpu_is_refused_with_advice(folder, gib):
    found = fit(folder, read_config(CONFIGS / "eight-gpus.toml"), 1, gib)
    assert not found.fits
    assert found.advice
    if gib == 24.0:
        assert "larger" in found.advice[0]


def test_the_configuration_for_one_gpu_serves_on_24_gib():
    config = read_config(CONFIGS / "one-gpu.toml")
    assert config.run.minutes == 0
    assert MemoryEstimate(MODEL, config).requests(24.0) >= 1


def test_the_advised_keys_make_it_fit_and_none_is_left_out():
    config = parse(
        {"trainer": {"processes": 4}, "policy": {"max_pixels": 2_116_800, "max_images": 5, "max_tokens": 500}}
    )
    estimate = MemoryEstimate(MODEL, config)
    assert estimate.advise(8, 80.0) == 'set trainer.dtype = "bfloat16" and trainer.recompute = true'
    changed = msgspec.structs.replace(config.trainer, dtype="bfloat16", recompute=True)
    assert estimate.split(8, 80.0) is None
    assert MemoryEstimate(MODEL, msgspec.structs.replace(config, trainer=changed)).split(8, 80.0) is not None
    config = parse({"policy": {"max_pixels": 2_116_800, "max_images": 5, "max_texts": 35, "max_tokens": 500}})
    estimate = MemoryEstimate(MODEL, config)
    assert estimate.advise(3, 80.0) == (
        'set trainer.dtype = "bfloat16", trainer.recompute = true, trainer.head_tokens = 512 and '
        'trainer.optimizer = "adamw_8bit"'
    )
    assert estimate.advise(2, 80.0).endswith('trainer.head_tokens = 512 and trainer.offload = "all"')


def test_a_second_set_of_weights_takes_its_memory_from_the_cache():
    estimate = MemoryEstimate(MODEL, Config())
    alone, both = (estimate.cache_blocks(80.0, second) for second in (False, True))
    assert (alone - both) * 16 * estimate.cache_token == pytest.approx(2 * UI_TARS_PARAMETERS, rel=1e-3)


def test_ranks_share_weights_and_cache(folder: Path):
    config = read_config(CONFIGS / "eight-gpus.toml")
    one, two = (fit(folder, with_vllm(config, tensor_parallel=ranks), 8, 80.0) for ranks in (1, 2))
    alone, shared = gib_of("rollout", one), gib_of("rollout", two)
    assert shared["weights"] == pytest.approx(alone["weights"] / 2, abs=0.01)
    assert shared["screenshot embeddings"] == alone["screenshot embeddings"], "each rank has them whole"
    first, second = (MemoryEstimate(MODEL, with_vllm(config, tensor_parallel=ranks)) for ranks in (1, 2))
    assert second.cache_token * 2 == first.cache_token
    assert two.requests > 2 * one.requests
    assert (two.rollout_gpus, two.trainer_gpus, two.tensor_parallel) == (4, 4, 2)


def test_a_rollout_worker_is_on_whole_gpus_of_its_own():
    config = with_vllm(read_config(CONFIGS / "eight-gpus.toml"), tensor_parallel=4)
    estimate = MemoryEstimate(MODEL, config)
    assert estimate.split(7, 80.0) is None, "the trainer needs 4"
    found = estimate.split(11, 80.0)
    assert (found.rollout, found.trainer) == (4, 4)


def test_the_doctor_refuses_heads_that_ranks_cannot_share(folder: Path, tmp_path: Path):
    config = tmp_path / "config.toml"
    config.write_text("rollout.vllm.tensor_parallel = 8")
    arguments = ["doctor", "--config", str(config), "--model", str(folder), "--gpu-memory", "80", "--gpus", "8"]
    done = CliRunner().invoke(main.build_app(arguments), arguments)
    assert "rollout.vllm.tensor_parallel = 8 does not divide the 28 attention heads" in str(done.exception)


@settings(max_examples=40)
@given(gpus=st.integers(2, 64), gib=st.floats(8, 256), pixels=st.integers(3136, 4_000_000), recompute=st.booleans())
def test_more_memory_or_more_gpus_never_fit_less(gpus: int, gib: float, pixels: int, recompute: bool):
    config = parse({"policy": {"max_pixels": pixels}, "trainer": {"dtype": "bfloat16", "recompute": recompute}})
    estimate = MemoryEstimate(MODEL, config)
    found = estimate.split(gpus, gib)
    if found is not None:
        assert found.rollout + found.trainer == gpus
        more = estimate.split(gpus + 1, gib * 1.1)
        assert more.trainer <= found.trainer
        assert more.requests >= found.requests
    else:
        assert estimate.advise(gpus, gib)


def test_the_doctor_prints_the_split_and_fails_where_it_does_not_fit(folder: Path):
    fits = run_doctor(folder, 8, "--gpu-memory", "80")
    assert fits.exit_code == 0, fits.output
    assert "4 GPUs for rollout (rollout.workers = 4), 4 for the trainer (trainer.processes = 4)" in fits.output
    small = run_doctor(folder, 2, "--gpu-memory", "80", "--json")
    assert small.exit_code == 1
    assert json.loads(small.stdout)["fits"] is False


@pytest.mark.parametrize(
    ("config", "shapes", "why"),
    [
        (UI_TARS, {}, r"no \*\.safetensors"),
        ({"model_type": "llama"}, {"model.layers.0.w": [2, 2]}, "no vision_config"),
        (UI_TARS | {"num_experts": 8}, {"model.layers.0.w": [2, 2]}, "mixture of experts"),
        (UI_TARS | {"hidden_size": None}, {"model.layers.0.w": [2, 2]}, "hidden_size"),
    ],
)
def test_a_directory_without_a_known_size_is_refused(tmp_path: Path, config, shapes, why: str):
    with pytest.raises(UserError, match=r"no config\.json"):
        read_shape(tmp_path)
    with pytest.raises(UserError, match=why):
        read_shape(write(tmp_path / "model", config, shapes))


@pytest.mark.parametrize(
    "data", [b"", b"\xff" * 64, (12).to_bytes(8, "little") + b'{"a": {}}   ', (2).to_bytes(8, "little") + b"[]"]
)
def test_a_damaged_header_is_refused(tmp_path: Path, data: bytes):
    broken = write(tmp_path / "model", UI_TARS, {"model.layers.0.w": [2, 2]})
    (broken / "model-0.safetensors").write_bytes(data)
    with pytest.raises(UserError, match="no whole safetensors file"):
        read_shape(broken)


def test_adapters_have_the_published_number_of_parameters():
    estimate = MemoryEstimate(MODEL, parse({"trainer": {"lora": {"rank": 16}}}))
    assert estimate.adapters == 16 * 28 * sum(map(sum, LINEAR)) == ADAPTERS
    assert estimate.merged == 28 * sum(out * into for out, into in LINEAR)
    targets = ["self_attn.q_proj", "v_proj"]
    few = MemoryEstimate(MODEL, parse({"trainer": {"lora": {"rank": 16, "targets": targets}}}))
    assert few.adapters == 16 * 28 * (3584 + 3584 + 512 + 3584)


def test_with_adapters_only_they_have_gradients_and_optimizer_state(folder: Path):
    whole = msgspec.structs.replace(read_config(CONFIGS / "two-gpus.toml").trainer, offload="none")
    configs = (
        msgspec.structs.replace(read_config(CONFIGS / "two-gpus.toml"), trainer=whole),
        with_lora("two-gpus.toml", offload="none", kl_beta=0.0),
    )
    full, lora = (fit(folder, config, 2, 80.0) for config in configs)
    assert not full.fits
    assert (lora.rollout_gpus, lora.trainer_gpus) == (1, 1)
    trainer = gib_of("trainer on", lora)
    assert trainer["parameters"] == pytest.approx(4 * (UI_TARS_PARAMETERS + ADAPTERS) / GIB, abs=0.01)
    assert trainer["gradients"] == pytest.approx(4 * ADAPTERS / GIB, abs=0.01)
    assert trainer["optimizer state (AdamW)"] == pytest.approx(8 * ADAPTERS / GIB, abs=0.01)
    frozen = 28 * sum(out * into for out, into in LINEAR)
    published = 4 * (UI_TARS_PARAMETERS + 3 * ADAPTERS + 152064 * 3584 + frozen)
    assert trainer["while a version is made"] == pytest.approx(published / GIB + 1.5, abs=0.02)
    assert gib_of("rollout", full)["sum"] == gib_of("rollout", lora)["sum"], "vLLM gets merged weights"


def test_a_trainer_without_memory_to_merge_does_not_fit():
    estimate = MemoryEstimate(MODEL, with_lora("two-gpus.toml", offload="none", kl_beta=0.0))
    assert total_bytes(estimate.trainer_step(1)) / GIB < 56 < estimate.publishing(1) / GIB
    assert not estimate.fits_trainer(56.0, 1)


def test_main_memory_is_counted_for_weights_kept_between_versions(folder: Path):
    def host_gib(config: Config) -> tuple[dict[str, float], dict[str, float]]:
        found = fit(folder, config, 8, 80.0)
        return gib_of("rollout, main", found), gib_of("trainer's rank 0", found)

    config, whole = read_config(CONFIGS / "eight-gpus.toml"), 2 * UI_TARS_PARAMETERS / GIB
    assert host_gib(config) == ({}, {})
    adapters = with_lora("eight-gpus.toml")
    deltas = msgspec.structs.replace(adapters.trainer, lora=Lora(), publish=Publish(dtype="bfloat16", full_every=10))
    rollout, trainer = host_gib(msgspec.structs.replace(adapters, trainer=deltas))
    assert (rollout["sum"], trainer["sum"]) == pytest.approx((whole, whole), abs=0.01)
    rollout, trainer = host_gib(adapters)
    assert (rollout["sum"], trainer["sum"]) == pytest.approx((2 * whole, whole), abs=0.01)
    pinned = with_vllm(config, second_set="host")
    assert host_gib(pinned)[0]["second set of weights, pinned"] == pytest.approx(whole, abs=0.01)


@pytest.mark.parametrize(
    ("wanted", "gib", "place"), [("device", 80.0, "device"), ("device", 40.0, "host"), ("auto", 80.0, "none")]
)
def test_the_second_set_is_counted_where_the_key_puts_it(folder: Path, wanted: str, gib: float, place: str):
    config = read_config(CONFIGS / "eight-gpus.toml")
    found = fit(folder, with_vllm(config, second_set=wanted), 8, gib)
    assert found.second_set == place
    assert ("second set of weights" in gib_of("rollout", found)) == (place == "device")
    assert ("second set of weights, pinned" in gib_of("rollout, main", found)) == (place == "host")
    alone = fit(folder, config, 8, gib).requests
    assert found.requests == (found.requests_with_second_set if place == "device" else alone)


def test_a_context_too_small_for_the_longest_prompt_fails(tmp_path: Path):
    small = ui_tars(tmp_path / "model")
    (small / "config.json").write_text(json.dumps(UI_TARS | {"max_position_embeddings": 512}))
    done = run_doctor(small, 8)
    assert done.exit_code == 1
    assert "It fits" in done.output
    assert "Its context is too small" in done.output


def test_an_unknown_target_is_refused_with_the_known_ones(folder: Path):
    config = parse({"trainer": {"lora": {"rank": 8, "targets": ["query"]}}})
    with pytest.raises(UserError, match=r"trainer\.lora\.targets: .*'query'; it has .*q_proj"):
        fit(folder, config, 2, 80.0)


@given(
    rank=st.integers(1, 512),
    gpus=st.integers(1, 16),
    targets=st.sets(st.sampled_from(["q_proj", "v_proj", "down_proj"])),
)
def test_small_adapters_never_take_more_than_full_training(rank: int, gpus: int, targets: set[str]):
    settings = {"lora": {"rank": rank, "targets": sorted(targets)}, "publish": {"dtype": "bfloat16"}}
    lora = MemoryEstimate(MODEL, parse({"trainer": settings}))
    full = MemoryEstimate(MODEL, parse({"trainer": {"publish": {"dtype": "bfloat16"}}}))
    assert total_bytes(lora.trainer_step(gpus)) < total_bytes(full.trainer_step(gpus))
    assert lora.publishing(gpus) < full.publishing(gpus)
    assert 0 < lora.trained < full.trained


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_8_bit_moments_take_a_quarter_of_those_in_float32(ranks: int):
    """A shard of less than 4,096 values, or of no multiple of a block of 256, keeps float32."""
    config = parse({"trainer": {"optimizer": "adamw_8bit"}})
    counted = {item.what: item.size for item in MemoryEstimate(MODEL, config).trainer_step(ranks)}
    stored = 0.0
    for outputs, *inputs in ui_tars_shapes().values():
        values = -(-outputs // ranks) * math.prod(inputs)
        stored += 2 * (values + values / 64 + 1024) if values >= 4096 and values % 256 == 0 else 8 * values
    assert counted["optimizer state (AdamW)"] == pytest.approx(stored, rel=0.06)
    assert stored < 0.27 * 8 * UI_TARS_PARAMETERS / ranks


def test_offloaded_state_is_counted_in_main_memory(folder: Path):
    found = fit(folder, read_config(CONFIGS / "two-gpus.toml"), 2, 80.0)
    on_gpu, in_main = gib_of("trainer on", found), gib_of("trainer's rank 0", found)
    assert not {"parameters", "gradients", "optimizer state (AdamW)", "reference model (trainer.kl_beta)"} & set(on_gpu)
    assert in_main["sum"] == pytest.approx(20 * UI_TARS_PARAMETERS / GIB, abs=0.05)
    root = 4 * (2 * 152064 * 3584) / GIB
    assert on_gpu["shards from and to main memory"] == pytest.approx(2 * root, rel=0.05)


def test_chunks_of_the_head_bound_the_logits(folder: Path):
    """A row of 5 steps has 2,500 answer tokens, and 8 answers to a first prompt on one rank have 4,000."""
    config = read_config(CONFIGS / "eight-gpus.toml")
    whole = msgspec.structs.replace(config, trainer=msgspec.structs.replace(config.trainer, head_tokens=0))
    logits = [gib_of("trainer on", fit(folder, each, 8, 96.0))["logits"] for each in (whole, config)]
    assert logits == pytest.approx([28 * 2500 * 152064 / GIB, 28 * 512 * 152064 / GIB], abs=0.01)
    assert MemoryEstimate(MODEL, whole).answer_tokens(1) == 4000
