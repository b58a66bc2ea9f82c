"""Measures the trainer's own step, memory and publishing with one plan on this process's device.

Shapes: see :mod:`trainer.data.collate`.
"""

import functools
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import msgspec
import torch
from torch import nn

from benchmarks.gpu import models
from benchmarks.gpu.plans import ROW_KINDS, Case, Plan
from benchmarks.gpu.trajectory import ANSWER, make_group, window_config
from console.sizing.gpu_memory import CUDA_BYTES, GIB, MemoryEstimate
from dart_streams.config import Config, parse
from dart_streams.deadline import Deadline
from dart_streams.policy.rendering import renderer_of
from trainer.data.collate import Collator, MicroBatch
from trainer.data.samples import TrainingSample
from trainer.learning.frozen_vision import FeatureCache
from trainer.learning.learner import Learner, StepResult, never_stop
from trainer.learning.model import Scorer
from trainer.ranks import Ranks
from trainer.version_writer import VersionWriter

LEARNING_RATE = 1e-6
"""Of the step between two published versions. Measured steps have none, so all see the same weights."""
DENSE_FLOPS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}
"""Dense bfloat16 operations a second, by the vendor's data sheet."""
METRICS = ("rows", "tokens_computed", "tokens_distinct", "images_encoded", "images_distinct", "grad_norm")
SHORT = Case("blocks 3 to 7", "several steps", 2)
Value = TypeVar("Value")


class Largest(NamedTuple):
    """The largest micro-batch: tokens, patches, answer tokens, and whether it needs a mask."""

    tokens: int = 0
    patches: int = 0
    answers: int = 0
    masked: bool = False


class MeasuringCollator(Collator):
    """Collates as the trainer does, and notes the largest micro-batch."""

    largest = Largest()

    def collate(self, samples: Sequence[TrainingSample], images: Mapping[str, bytes]) -> MicroBatch:
        """Return samples as a micro-batch."""
        batch = super().collate(samples, images)
        patches = len(batch.images["pixel_values"])
        size = Largest(batch.input_ids_RL.numel(), patches, int(batch.present_BA.sum()), batch.needs_mask)
        self.largest = max(self.largest, size)
        return batch


class VisionClock:
    """Time of a vision tower's forward passes on a GPU, within the block."""

    def __init__(self, tower: nn.Module, device: torch.device) -> None:
        self.events: list[torch.cuda.Event] = []
        self.hooks: list[Any] = []
        if device.type == "cuda":
            self.hooks.append(tower.register_forward_pre_hook(lambda *_: self._note()))
            self.hooks.append(tower.register_forward_hook(lambda *_: self._note()))

    def _note(self) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self.events.append(event)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self.hooks:
            hook.remove()

    @property
    def seconds(self) -> float:
        """Seconds of all passes, once the device is synchronized."""
        pairs = zip(self.events[::2], self.events[1::2], strict=True)
        return round(sum(start.elapsed_time(end) for start, end in pairs) / 1000, 3)


class TrainerBenchmark:
    """One plan on one device; ``folder`` holds the model's directory and its versions."""

    def __init__(self, plan: Plan, folder: Path, ranks: Ranks) -> None:
        self.plan = plan
        self.folder = folder
        self.ranks = ranks
        self.config = plan_config(plan, folder)
        models.write_folder(folder / "model", models.MODELS[plan.model], self.config.policy.max_pixels)
        self.shape = models.model_shape(folder / "model")
        self.renderer = renderer_of(folder / "model", self.config.policy)
        self.learner: Learner

    def measure(self, deadline: Deadline) -> Iterator[dict[str, Any]]:
        """Yield the figures of loading, of each case, and of publishing; what has no time left is named."""
        yield self.load()
        self.measure_case(SHORT)  # The optimizer's state and the kernels.
        for case in self.plan.cases:
            if deadline.expired:
                yield {"what": "step", **case._asdict(), "not run": "no time was left"}
                continue
            yield self.measure_case(case)
        yield from self.publish()

    def load(self) -> dict[str, Any]:
        """Build the learner; return seconds and peak memory."""
        arguments = self.folder / "model", self.renderer, self.config.trainer, self.ranks
        with models.random_weights(self.ranks.device):
            self.learner, figures = self.timed(functools.partial(Learner, *arguments))
        estimate = MemoryEstimate(self.shape, self.config)
        trained = sum(value.numel() for value in self.learner.scorer.parameters() if value.requires_grad)
        kinds = self.learner.collator.rows.kinds._asdict()
        sizes = {"parameters": self.shape.parameters, "trained": trained}
        return {"what": "load", **sizes, "rows": kinds, **figures, **compare_peak(figures, estimate.loading(1))}

    def measure_case(self, case: Case) -> dict[str, Any]:
        """Return the figures of one step, or that it needs more memory than there is."""
        named = {"what": "step", **case._asdict()}
        group = make_group(window_config(self.config, case.window), self.renderer, case.steps, self.plan.screen)
        self.learner.collator = collator = MeasuringCollator(self.renderer, ROW_KINDS[case.row])
        set_recompute(self.learner.scorer, case.recompute)
        if self.learner.scorer.features is not None:
            self.learner.scorer.features = FeatureCache(self.ranks.any)
        try:
            with VisionClock(self.learner.scorer.policy.base_model.visual, self.ranks.device) as vision:
                done, figures = self.timed(functools.partial(self.learner.learn, [group], 0, never_stop))
        except torch.OutOfMemoryError as error:
            self.learner.optimizer.zero_grad(set_to_none=True)
            return {**named, "not run": str(error).partition(". ")[0]}
        if vision.events:
            figures["vision_s"] = vision.seconds
        largest, found = collator.largest, {name: done.metrics[name] for name in METRICS}
        estimates = self.estimates(case, largest, figures)
        return {**named, **found, **figures, **self.speed(done, figures), "largest": largest._asdict(), **estimates}

    def speed(self, done: StepResult, figures: Mapping[str, float]) -> dict[str, float]:
        """Return the step's operations a second in 10^12, and their share of the device's."""
        rate, peak = self.floating_operations(done) / figures["seconds"], peak_flops()
        return {"tflops": round(rate / 1e12, 4), **({"mfu": round(rate / peak, 3)} if peak else {})}

    def floating_operations(self, done: StepResult) -> float:
        """Return 6 operations a trained parameter and token, 4 a frozen one of the language model, 2 of the tower.

        Attention is left out, and so is what is computed again. The embeddings are no product, and the head makes
        logits of answers only.
        """
        text, adapted = self.shape.text, bool(self.learner.settings.lora.rank)
        layers = sum(out * into for out, into in self.shape.linear.values())
        tokens = done.metrics["tokens_computed"] * layers + done.tokens * text.vocabulary * text.hidden
        vision, patches = self.shape.vision, patches_of(self.plan.screen)
        tower = vision.layers * (4 * vision.hidden**2 + 3 * vision.hidden * vision.intermediate)
        seen = done.metrics["images_encoded"] * patches * tower
        return (4 if adapted else 6) * tokens + (2 if adapted else 6) * seen

    def estimates(self, case: Case, largest: Largest, figures: Mapping[str, float]) -> dict[str, Any]:
        """Return what ``doctor --model`` says of the step, and the same formulas for its largest micro-batch."""
        config = window_config(self.config, case.window)
        trainer = msgspec.structs.replace(config.trainer, recompute=case.recompute)
        estimate = MemoryEstimate(self.shape, msgspec.structs.replace(config, trainer=trainer))
        items = {item.what.partition(",")[0]: item.size for item in estimate.trainer_step(1)}
        doctor_total = sum(items.values())
        items["screenshots"] = 4 * largest.patches * self.shape.vision.patch_values
        items["activations"] = estimate.activations(largest.tokens, largest.patches)
        items |= {item.what: item.size for item in estimate.head(largest.answers)}
        items["attention mask"] *= largest.masked
        return {
            **compare_peak(figures, doctor_total),
            "estimate_of_batch": {what: round(size / GIB, 3) for what, size in items.items()},
            **compare_peak(figures, sum(items.values()), "_of_batch"),
        }

    def publish(self) -> Iterator[dict[str, Any]]:
        """Write the weights, make a step, and write them again, as a delta or an adapter."""
        writer = VersionWriter(self.config.trainer.publish)
        estimate = MemoryEstimate(self.shape, self.config)
        for version in range(2):
            snapshot, figures = self.timed(self.learner.snapshot)
            yield {"what": "snapshot", "version": version, **figures, **compare_peak(figures, estimate.publishing(1))}
            write = functools.partial(writer.write, str(self.folder / f"v{version}"), version, *snapshot)
            written, figures = self.timed(write)
            found = {"kind": written.own.kind, "bytes": written.size_bytes, "changed_share": written.changed_share}
            yield {"what": "publish", "version": version, **found, "seconds": figures["seconds"]}
            for table in self.learner.optimizer.param_groups:
                table["lr"] = LEARNING_RATE
            if not version:
                self.measure_case(SHORT)

    def timed(self, body: Callable[[], Value]) -> tuple[Value, dict[str, float]]:
        """Return the value of ``body`` with its seconds and, on a GPU, the peak of allocated memory."""
        on_gpu = self.ranks.device.type == "cuda"
        gc.collect()
        if on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        value = body()
        if on_gpu:
            torch.cuda.synchronize()
        figures = {"seconds": round(time.perf_counter() - started, 3)}
        if on_gpu:
            free, total = torch.cuda.mem_get_info()
            figures["peak_gib"] = round(torch.cuda.max_memory_allocated() / GIB, 3)
            figures["reserved_gib"] = round(torch.cuda.max_memory_reserved() / GIB, 3)
            figures["outside_gib"] = round((total - free - torch.cuda.memory_reserved()) / GIB, 3)
        return value, figures


def plan_config(plan: Plan, folder: Path) -> Config:
    """Return the configuration of a plan: one row a micro-batch, learning rate 0."""
    width, height = plan.screen
    return parse(
        {
            "policy": {"max_tokens": ANSWER, "max_pixels": width * height, "path": str(folder / "model")},
            "trainer": {
                "micro_batch": 1,
                "micro_batch_tokens": 1,
                "dtype": "bfloat16",
                "learning_rate": 0.0,
                "correction": "none",
                **plan.trainer,
            },
        }
    )


def set_recompute(scorer: Scorer, on: bool) -> None:
    """Turn ``trainer.recompute`` on or off for a learner that is there."""
    if on:
        scorer.policy.gradient_checkpointing_enable()
    else:
        scorer.policy.gradient_checkpointing_disable()
    scorer.train(on)


def compare_peak(figures: Mapping[str, float], estimated: float, of: str = "") -> dict[str, float]:
    """Return an estimate without what it assumes for CUDA (GiB), and the measured peak over it."""
    counted = (estimated - CUDA_BYTES) / GIB
    ratio = {f"peak_over_estimate{of}": round(figures["peak_gib"] / counted, 3)} if "peak_gib" in figures else {}
    return {f"estimate{of}_gib": round(counted, 3), **ratio}


def peak_flops() -> float | None:
    """Return the device's dense operations a second; None if it is not known."""
    if not torch.cuda.is_available():
        return None
    name = torch.cuda.get_device_name()
    return next((rate for card, rate in DENSE_FLOPS.items() if card in name), None)


def patches_of(screen: tuple[int, int]) -> int:
    """Return the patches of a screenshot."""
    return screen[0] * screen[1] // models.PATCH**2
