"""The counts of ``doctor --model`` against torch's allocations in the trainer's forward and backward pass."""

import dataclasses
import hashlib
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from PIL import Image
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from console.sizing.gpu_memory import CUDA_BYTES, MemoryEstimate, total_bytes
from console.sizing.model_files import ModelShape, read_shape, shape_of
from dart_streams.config import Config, parse
from dart_streams.policy import tiny, tiny_architectures
from dart_streams.policy.rendering import Renderer
from tests.unit.console.sizing.model_directories import UI_TARS
from topics.values import BlobRef, MessagePart
from trainer.data.collate import Collator, MicroBatch
from trainer.data.rows import RowKinds
from trainer.data.samples import TrainingSample
from trainer.learning import model, optimizers

CLOSE = 0.10
ANSWER = 12


class Case(NamedTuple):
    """A model and a micro-batch: widths and layers, the size of a screen, rows and answers to each prompt."""

    hidden: int
    intermediate: int
    layers: int
    vision_layers: int
    screen: tuple[int, int]
    rows: int
    answers: int = 1


CASES = (
    Case(128, 384, 3, 2, (160, 210), 2),
    Case(256, 768, 6, 2, (160, 210), 4),
    Case(128, 384, 2, 5, (480, 320), 2),
    Case(256, 512, 4, 3, (320, 240), 2, answers=4),
)
DEEP = Case(128, 384, 24, 2, (160, 210), 2)
WIDE = Case(512, 1536, 2, 2, (80, 60), 2)


class Loaded(NamedTuple):
    """A model as the trainer has it, its size as read from its files, and a micro-batch."""

    scorer: model.Scorer
    shape: ModelShape
    batch: MicroBatch

    @property
    def tokens(self) -> int:
        return self.batch.input_ids_RL.numel()

    @property
    def patches(self) -> int:
        return len(self.batch.images["pixel_values"])


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Loaded]:
    def load_case(case: Case, config: Config) -> Loaded:
        monkeypatch.setattr(tiny_architectures, "INTERMEDIATE", case.intermediate // case.hidden)
        monkeypatch.setattr(tiny_architectures, "LAYERS", case.layers)
        monkeypatch.setattr(tiny_architectures, "VISION_LAYERS", case.vision_layers)
        folder = tmp_path / "model"
        if not folder.exists():
            tiny.build(folder, width=case.hidden)
        limits = Config().policy
        renderer = Renderer(folder, limits.min_pixels, limits.max_pixels)
        trainer, dtype = config.trainer, getattr(torch, config.trainer.dtype)
        adapted = trainer if trainer.lora.rank else None
        scorer = model.load(folder, renderer, torch.device("cpu"), trainer.recompute, None, adapted)
        scorer.policy.to(dtype)
        scorer.head_tokens = trainer.head_tokens
        batch = batch_of(case, renderer)
        images = {name: image.to(dtype) if image.is_floating_point() else image for name, image in batch.images.items()}
        batch = dataclasses.replace(batch, images=images)
        return Loaded(scorer, read_shape(folder), batch)

    return load_case


def batch_of(case: Case, renderer: Renderer) -> MicroBatch:
    images: dict[str, bytes] = {}
    items = []
    for row in range(case.rows):
        stream = io.BytesIO()
        Image.new("RGB", case.screen, (row, 0, 0)).save(stream, "PNG")
        sha256 = hashlib.sha256(stream.getvalue()).hexdigest()
        images[sha256] = stream.getvalue()
        ref = BlobRef(sha256=sha256, size=1, width=case.screen[0], height=case.screen[1])
        turns = [MessagePart(role="user", text="Click the button. " * (3 + row)), MessagePart(role="user", image=ref)]
        prompt = renderer.prompt(turns)
        for answer in range(case.answers):
            tokens = [10 + answer + place for place in range(ANSWER)]
            items.append(TrainingSample(prompt=prompt.token_ids, images=prompt.images, answer=tokens))
    return Collator(renderer, RowKinds(masked=case.answers > 1)).collate(items, images)


def saved_bytes(loaded: Loaded) -> int:
    """Return what a forward pass saves for the backward pass: each storage once, parameters and masks left out."""
    own = {tensor.untyped_storage().data_ptr() for tensor in [*loaded.scorer.parameters(), *loaded.scorer.buffers()]}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own and tensor.dtype != torch.bool:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loaded.scorer(loaded.batch)
    return sum(storage.nbytes() for storage in kept.values())


def trainer_config(dtype: torch.dtype = torch.float32, **trainer: object) -> Config:
    return parse({"trainer": {"dtype": str(dtype).removeprefix("torch."), **trainer}})


def lora_config(*targets: str, dtype: torch.dtype = torch.float32, **trainer: object) -> Config:
    """Return a configuration with adapters on these layers, on all without any."""
    return trainer_config(dtype, lora={"rank": 16, "targets": list(targets)}, **trainer)


def saved_estimate(loaded: Loaded, config: Config) -> float:
    """Return the estimate for this micro-batch's forward pass; a layer that is computed again saves nothing in it."""
    estimate = MemoryEstimate(loaded.shape, config)
    token, patch = estimate.layer_activations()
    recomputed = max(loaded.tokens * token, loaded.patches * patch) if config.trainer.recompute else 0
    saved = estimate.activations(loaded.tokens, loaded.patches) - recomputed
    return saved + estimate.logits(loaded.batch.answers_BA.numel())


NUMBERED = [pytest.param(case, id=str(number)) for number, case in enumerate(CASES)]
DTYPES = (torch.float32, torch.bfloat16)
TARGETS = [(), ("q_proj", "v_proj"), ("down_proj",), ("o_proj", "up_proj")]
SAVED = {
    **{f"{dtype}, case {n}": (case, trainer_config(dtype)) for n, case in enumerate(CASES) for dtype in DTYPES},
    **{f"recomputed, case {n}": (case, trainer_config(recompute=True)) for n, case in enumerate(CASES)},
    # In the first layer, what comes before the first adapter saves nothing, which is not counted.
    **{f"{dtype}, frozen but {on}": (DEEP, lora_config(*on, dtype=dtype)) for on in TARGETS for dtype in DTYPES},
    "recomputed, frozen": (CASES[1], lora_config(recompute=True)),
    **{f"{dtype}, chunks of the head": (CASES[1], trainer_config(dtype, head_tokens=8)) for dtype in DTYPES},
    "chunks of the head, frozen": (DEEP, lora_config(head_tokens=8)),
}


@pytest.mark.parametrize("name", SAVED)
def test_saved_activations_are_counted_within_a_tenth(load, name):
    case, config = SAVED[name]
    loaded = load(case, config)
    assert saved_estimate(loaded, config) == pytest.approx(saved_bytes(loaded), rel=CLOSE)


def step_of(
    scorer: model.Scorer, batch: MicroBatch, config: Config | None = None
) -> Callable[[], torch.optim.Optimizer]:
    """Return a step of the trainer's optimizer, which leaves the gradients in place."""
    optimizer = optimizers.build(scorer.parameters(), (config or Config()).trainer, torch.device("cpu"))

    def step() -> torch.optim.Optimizer:
        optimizer.zero_grad(set_to_none=True)
        logp_BA, entropy_BA = scorer(batch)
        (logp_BA.sum() + entropy_BA.sum()).backward()
        optimizer.step()
        return optimizer

    return step


def local_bytes(tensors: Iterable[Any]) -> int:
    """Return the bytes of tensors, of sharded ones this rank's; what FSDP2 does not shard is left out."""
    tensors = list(tensors)
    sharded = [tensor.to_local() for tensor in tensors if isinstance(tensor, DTensor)]
    # Of 8-bit state its codes and scales.
    parts = ([t.codes, t.scale, t.qmap] if optimizers.is_quantized(t) else [t] for t in sharded or tensors)
    return sum(part.nbytes for own in parts for part in own)


def assert_state_is_counted(loaded: Loaded, scorer: model.Scorer, config: Config, ranks: int, rel: float) -> None:
    """Compare the estimate with the parameters, gradients and optimizer state after a step."""
    optimizer = step_of(scorer, loaded.batch, config)()
    parameters = list(scorer.parameters())
    real = {
        "parameters": local_bytes(parameters),
        "gradients": local_bytes(p.grad for p in parameters if p.grad is not None),
        "optimizer state (AdamW)": local_bytes(t for state in optimizer.state.values() for t in state.values()),
    }
    items = {item.what: item.size for item in MemoryEstimate(loaded.shape, config).trainer_step(ranks)}
    assert {what: items[what] for what in real} == pytest.approx(real, rel=rel)


@pytest.mark.parametrize(
    ("case", "config"),
    [(CASES[0], trainer_config()), (CASES[1], trainer_config()), (CASES[1], lora_config())],
    ids=["0", "1", "lora"],
)
def test_parameters_gradients_and_optimizer_state_are_counted(load, case, config):
    loaded = load(case, config)
    assert_state_is_counted(loaded, loaded.scorer, config, 1, rel=0.01)


@pytest.fixture(params=[2, 8])
def ranks(request: pytest.FixtureRequest) -> Iterator[int]:
    """This process as the first of several ranks, whose collectives move nothing."""
    dist.init_process_group("fake", rank=0, world_size=request.param, store=FakeStore())
    yield request.param
    dist.destroy_process_group()


@pytest.mark.parametrize("optimizer", ["adamw", "adamw_8bit"])
def test_the_share_of_a_rank_is_counted_within_a_tenth(load, ranks, optimizer):
    """FSDP2 pads what it cannot divide, and small tensors have no 8-bit state: of a large model that is nothing."""
    config = trainer_config(optimizer=optimizer)
    loaded = load(WIDE if optimizer == "adamw_8bit" else CASES[1], config)
    scorer = model.shard(loaded.scorer, init_device_mesh("cpu", (ranks,)), "float32")
    assert_state_is_counted(loaded, scorer, config, ranks, rel=CLOSE)


def test_8_bit_optimizer_state_is_counted_within_a_tenth(load):
    config = trainer_config(optimizer="adamw_8bit")
    loaded = load(WIDE, config)
    assert_state_is_counted(loaded, loaded.scorer, config, 1, rel=CLOSE)


def peak_bytes(tracked: tuple[Any, ...], body: Callable[[], object]) -> int:
    """Return the peak of CPU memory in ``body``, by torch's own tracker."""
    tracker = MemTracker()
    tracker.track_external(*tracked)
    with tracker:
        body()
    [peak] = [taken["Total"] for device, taken in tracker.get_tracker_snapshot("peak").items() if device.type == "cpu"]
    return peak


@pytest.mark.parametrize("adapters", [True, False])
def test_the_peak_of_publishing_is_counted_within_a_tenth(load, adapters):
    published = {"publish": {"dtype": "bfloat16"}}
    config = lora_config(**published) if adapters else trainer_config(**published)
    loaded = load(CASES[1], config)

    def publish() -> None:
        with model.as_published(loaded.scorer, torch.bfloat16):
            pass

    peak = peak_bytes((loaded.scorer,), publish)
    estimate = MemoryEstimate(loaded.shape, config)
    states = {item.what: item.size for item in estimate.trainer_state(1)}
    expected = estimate.publishing(1) - CUDA_BYTES - states["optimizer state (AdamW)"]
    assert expected == pytest.approx(peak, rel=CLOSE)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("case", NUMBERED[1:3])
def test_the_peak_of_a_step_is_counted_within_a_tenth(load, case, recompute):
    """The second step is tracked, when the optimizer has its state."""
    config = trainer_config(recompute=recompute)
    loaded = load(case, config)
    step = step_of(loaded.scorer, loaded.batch)
    optimizer = step()
    optimizer.zero_grad(set_to_none=True)
    peak = peak_bytes((loaded.scorer, optimizer), step)
    estimate = MemoryEstimate(loaded.shape, config)
    states = {item.what: item.size for item in estimate.trainer_step(1)}
    kept = states["parameters"] + states["optimizer state (AdamW)"]
    expected = kept + estimate.activations(loaded.tokens, loaded.patches)
    expected += estimate.logits(loaded.batch.answers_BA.numel())
    assert expected <= peak * (1 + CLOSE)
    assert peak <= (expected + states["gradients"]) * (1 + CLOSE)


class OutputLayer(nn.Module):
    """A policy that has nothing but its output layer."""

    def __init__(self, hidden: int, vocabulary: int) -> None:
        super().__init__()
        self.layer = nn.Linear(hidden, vocabulary, bias=False)

    def get_output_embeddings(self) -> nn.Linear:
        return self.layer


class HeadScorer(model.Scorer):
    """The part of a scorer that makes log-probabilities of last hidden states."""

    def __init__(self, hidden: int, vocabulary: int, chunk: int) -> None:
        nn.Module.__init__(self)
        self.policy = OutputLayer(hidden, vocabulary)
        self.head_tokens = chunk
        self.register_buffer("forbidden_V", torch.zeros(vocabulary, dtype=torch.bool))

    def forward(self, states_ND: torch.Tensor, *rest: torch.Tensor) -> Sequence[torch.Tensor]:
        return (
            self._scored_in_chunks(states_ND, *rest)
            if self.head_tokens
            else self._scored(self.policy.layer(states_ND), *rest)
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("chunk", [0, 64, 256])
def test_the_peak_of_the_head_is_counted_within_a_tenth(chunk, dtype):
    """Tensors of the size of the logits, and with chunks a second gradient of the layer."""
    hidden, vocabulary, answers = 32, 20_000, 512
    scorer = HeadScorer(hidden, vocabulary, chunk).to(dtype)
    states_ND = torch.randn(answers, hidden, dtype=dtype, requires_grad=True)
    tokens_N, temperature_N = torch.randint(0, vocabulary, (answers,)), torch.ones(answers)

    def scored() -> None:
        logp_N, entropy_N = scorer(states_ND, tokens_N, temperature_N)
        (logp_N.sum() + entropy_N.sum()).backward()

    layer = scorer.policy.layer.weight.nbytes
    peak = peak_bytes((scorer,), scored) - layer - scorer.forbidden_V.nbytes
    small = UI_TARS | {"hidden_size": hidden, "vocab_size": vocabulary}
    shape = shape_of(small, {"model.layers.0.w": [2, 2]})
    estimate = MemoryEstimate(shape, trainer_config(dtype, head_tokens=chunk))
    assert total_bytes(estimate.head(answers)) + layer == pytest.approx(peak, rel=CLOSE)
