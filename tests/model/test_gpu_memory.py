"""What ``doctor --model`` counts, against what torch allocates in the trainer's own forward and backward pass."""

import dataclasses
import hashlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from PIL import Image
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from dart_streams.config import Config, parse
from dart_streams.console.sizing import adapter_memory, gpu_memory, model_files
from dart_streams.console.sizing.model_files import ModelShape
from dart_streams.policy import tiny, tiny_architectures
from dart_streams.policy.rendering import Renderer
from topics.values import BlobRef, MessagePart
from trainer.data.collate import Collator, MicroBatch
from trainer.data.samples import TrainingSample
from trainer.learning import model

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


class Made(NamedTuple):
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
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Made]:
    def make(
        case: Case, recompute: bool = False, dtype: torch.dtype = torch.float32, config: Config | None = None
    ) -> Made:
        monkeypatch.setattr(tiny_architectures, "INTERMEDIATE", case.intermediate // case.hidden)
        monkeypatch.setattr(tiny_architectures, "LAYERS", case.layers)
        monkeypatch.setattr(tiny_architectures, "VISION_LAYERS", case.vision_layers)
        folder = tmp_path / "model"
        if not folder.exists():
            tiny.build(folder, width=case.hidden)
        limits = Config().policy
        renderer = Renderer(folder, limits.min_pixels, limits.max_pixels)
        adapted = config.trainer if config else None
        scorer = model.load(folder, renderer, torch.device("cpu"), recompute, None, adapted)
        scorer.policy.to(dtype)
        batch = batch_of(case, renderer)
        images = {name: image.to(dtype) if image.is_floating_point() else image for name, image in batch.images.items()}
        batch = dataclasses.replace(batch, images=images)
        return Made(scorer, model_files.read(folder), batch)

    return make


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
    return Collator(renderer, share_prompts=case.answers > 1).collate(items, images)


def saved_bytes(found: Made) -> int:
    """Return what a forward pass saves for the backward pass: each storage once, parameters and masks left out."""
    own = {tensor.untyped_storage().data_ptr() for tensor in [*found.scorer.parameters(), *found.scorer.buffers()]}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own and tensor.dtype != torch.bool:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        found.scorer(found.batch)
    return sum(storage.nbytes() for storage in kept.values())


def counted(found: Made, width: int, recompute: bool) -> float:
    """Return what the command counts for this micro-batch's forward pass."""
    saved = gpu_memory.activations(found.shape, found.tokens, found.patches, width, recompute)
    return saved + gpu_memory.logits(found.shape, found.batch.answers_BA.numel())


def one_layer(found: Made, width: int) -> float:
    """Return what is counted for the layer that is computed again; it is saved in the backward pass only."""
    text = found.tokens * gpu_memory.text_activations(found.shape, width)
    return max(text, found.patches * gpu_memory.vision_activations(found.shape, width))


def lora(*targets: str, recompute: bool = False) -> Config:
    """Return a configuration with adapters on these layers, on all without any."""
    return parse({"trainer": {"recompute": recompute, "lora": {"rank": 16, "targets": list(targets)}}})


def counted_with_adapters(found: Made, config: Config, width: int) -> float:
    """Return what the command counts for this micro-batch's forward pass beside frozen weights."""
    saved = gpu_memory.saved(found.shape, config, found.tokens, found.patches, width)
    return saved + gpu_memory.logits(found.shape, found.batch.answers_BA.numel())


TARGETS = [(), ("q_proj", "v_proj"), ("down_proj",), ("o_proj", "up_proj")]


@pytest.mark.parametrize("targets", TARGETS, ids=["all", "query-value", "down", "output-up"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("case", CASES[1:3], ids=["1", "2"])
def test_what_is_saved_beside_frozen_weights_is_counted_within_a_tenth(made, case: Case, dtype: torch.dtype, targets):
    config = lora(*targets)
    found = made(case, dtype=dtype, config=config)
    assert counted_with_adapters(found, config, dtype.itemsize) == pytest.approx(saved_bytes(found), rel=CLOSE)


def test_what_is_saved_beside_frozen_weights_with_recomputing_is_counted_within_a_tenth(made):
    config = lora(recompute=True)
    found = made(CASES[1], recompute=True, config=config)
    one = adapter_memory.activations(found.shape, found.tokens, 4, config.trainer.lora) / found.shape.text.layers
    assert counted_with_adapters(found, config, 4) - one == pytest.approx(saved_bytes(found), rel=CLOSE)


def test_only_adapters_have_gradients_and_state(made):
    config = lora()
    found = made(CASES[1], config=config)
    parameters = list(found.scorer.parameters())
    trained = [p for p in parameters if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, fused=True)

    def forward_and_backward() -> None:
        logp_BA, entropy_BA = found.scorer(found.batch)
        (logp_BA.sum() + entropy_BA.sum()).backward()

    forward_and_backward()
    optimizer.step()
    real = {
        "parameters": sum(p.nbytes for p in parameters),
        "gradients": sum(p.grad.nbytes for p in parameters if p.grad is not None),
        "optimizer state (AdamW)": sum(t.nbytes for state in optimizer.state.values() for t in state.values()),
    }
    items = {item.what: item.size for item in gpu_memory.trainer(found.shape, config, 1)}
    for what, size in real.items():
        assert items[what] == pytest.approx(size, rel=0.01), what


@pytest.mark.parametrize("adapters", [True, False])
def test_what_is_kept_while_a_version_is_made_is_counted_within_a_tenth(made, adapters: bool):
    """By torch's own tracker, while the weights are rounded, or the adapters merged into them."""
    published = {"publish": {"dtype": "bfloat16"}}
    config = parse({"trainer": published | ({"lora": {"rank": 16}} if adapters else {})})
    found = made(CASES[1], config=config)
    tracker = MemTracker()
    tracker.track_external(found.scorer)
    with tracker, model.as_published(found.scorer, torch.bfloat16):
        pass
    [peak] = [taken["Total"] for device, taken in tracker.get_tracker_snapshot("peak").items() if device.type == "cpu"]
    states = {item.what: item.size for item in gpu_memory.state(found.shape, config, 1)}
    counted = gpu_memory.publishing(found.shape, config, 1) - gpu_memory.CUDA_GIB * gpu_memory.GIB
    expected = counted - states["optimizer state (AdamW)"]
    assert expected == pytest.approx(peak, rel=CLOSE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("case", CASES, ids=map(str, range(len(CASES))))
def test_saved_activations_are_counted_within_a_tenth(made, case: Case, dtype: torch.dtype):
    found = made(case, dtype=dtype)
    assert counted(found, dtype.itemsize, False) == pytest.approx(saved_bytes(found), rel=CLOSE)


@pytest.mark.parametrize("case", CASES, ids=map(str, range(len(CASES))))
def test_what_is_saved_with_recomputing_is_counted_within_a_tenth(made, case: Case):
    found = made(case, recompute=True)
    assert counted(found, 4, True) - one_layer(found, 4) == pytest.approx(saved_bytes(found), rel=CLOSE)


@pytest.mark.parametrize("case", CASES[:2], ids=["0", "1"])
def test_parameters_gradients_and_the_optimizers_state_are_counted(made, case: Case):
    found = made(case)
    optimizer = torch.optim.AdamW(found.scorer.parameters(), lr=1e-3, fused=True)
    logp_BA, entropy_BA = found.scorer(found.batch)
    (logp_BA.sum() + entropy_BA.sum()).backward()
    optimizer.step()
    parameters = list(found.scorer.parameters())
    real = {
        "parameters": sum(p.nbytes for p in parameters),
        "gradients": sum(p.grad.nbytes for p in parameters if p.grad is not None),
        "optimizer state (AdamW)": sum(t.nbytes for state in optimizer.state.values() for t in state.values()),
    }
    items = {item.what: item.size for item in gpu_memory.trainer(found.shape, Config(), 1)}
    for what, size in real.items():
        assert items[what] == pytest.approx(size, rel=0.01), what


@pytest.fixture(params=[2, 8])
def ranks(request: pytest.FixtureRequest) -> Iterator[int]:
    """This process as the first of several ranks, whose collectives move nothing."""
    dist.init_process_group("fake", rank=0, world_size=request.param, store=FakeStore())
    yield request.param
    dist.destroy_process_group()


def test_the_share_of_a_rank_is_counted_within_a_tenth(made, ranks: int):
    """FSDP2 pads what it cannot divide: of a large model that is nothing, of the tiny one little."""
    found = made(CASES[1])
    scorer = model.shard(found.scorer, init_device_mesh("cpu", (ranks,)), "float32")
    optimizer = torch.optim.AdamW(scorer.parameters(), lr=1e-3, fused=True)
    logp_BA, entropy_BA = scorer(found.batch)
    (logp_BA.sum() + entropy_BA.sum()).backward()
    optimizer.step()
    parameters = [p for p in scorer.parameters() if isinstance(p, DTensor)]
    state = [t for state in optimizer.state.values() for t in state.values() if isinstance(t, DTensor)]
    real = {
        "parameters": sum(p.to_local().nbytes for p in parameters),
        "gradients": sum(p.grad.to_local().nbytes for p in parameters if p.grad is not None),
        "optimizer state (AdamW)": sum(t.to_local().nbytes for t in state),
    }
    items = {item.what: item.size for item in gpu_memory.trainer(found.shape, Config(), ranks)}
    for what, size in real.items():
        assert items[what] == pytest.approx(size, rel=CLOSE), what


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("case", CASES[1:3], ids=["1", "2"])
def test_the_peak_of_a_step_is_counted_within_a_tenth(made, case: Case, recompute: bool):
    """By torch's own tracker, over the second step, when the optimizer has its state."""
    found = made(case, recompute=recompute)
    optimizer = torch.optim.AdamW(found.scorer.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        logp_BA, entropy_BA = found.scorer(found.batch)
        (logp_BA.sum() + entropy_BA.sum()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step()
    tracker = MemTracker()
    tracker.track_external(found.scorer, optimizer)
    with tracker:
        step()
    [peak] = [taken["Total"] for device, taken in tracker.get_tracker_snapshot("peak").items() if device.type == "cpu"]
    states = {item.what: item.size for item in gpu_memory.trainer(found.shape, parse({}), 1)}
    parts = [states["parameters"], states["optimizer state (AdamW)"]]
    expected = sum(parts) + counted(found, 4, recompute)
    assert expected <= peak * (1 + CLOSE)
    assert peak <= (expected + states["gradients"]) * (1 + CLOSE)
