"""Size and latency of weight versions by kind: ``dart-streams bench weights --kinds``.

The trainer's model, optimizer and publisher train a new policy on synthetic data, and a real rollout worker with vLLM
follows. Latency is from the end of an optimizer step to the worker's announcement, with equal digests. There is no
other load, and files are on a local disk.
"""

import asyncio
import contextlib
import dataclasses
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from benchmarks.private_services import private_services, write_config
from benchmarks.weights_switching import START_TIMEOUT_S, SWITCH_TIMEOUT_S, Workers
from dart_streams.bus import admin
from dart_streams.clock import now_ms
from dart_streams.config import Config
from dart_streams.errors import UserError
from dart_streams.store import create_schema

Size = Literal["tiny", "larger"]

PUBLISHED: dict[str, dict[str, Any]] = {
    "full_float32": {"publish": {"dtype": "float32", "full_every": 1}},
    "full": {"publish": {"dtype": "bfloat16", "full_every": 1}},
    "delta": {"publish": {"dtype": "bfloat16", "full_every": 1000}},
    "adapter": {"publish": {"dtype": "bfloat16"}, "lora": {"rank": 16, "alpha": 32}},
}
"""Trainer settings of each kind; adapters cover all linear layers of the language model."""
LARGER: dict[str, dict[str, Any]] = {
    "text_config": {
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 12,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "initializer_range": 0.02,
    },
    "vision_config": {"out_hidden_size": 1024, "initializer_range": 0.02},
}
"""Differences of the larger policy: 140 million parameters."""
ROWS = 8
"""Answers per step."""
PARITY_NATS = 1.0
"""Parity bound; the probe has unrounded weights, and rounding an untrained policy matters little here."""


class KindsPlan(NamedTuple):
    """Versions of each kind after the first, made by AdamW with ``learning_rate``."""

    size: Size
    versions: int
    learning_rate: float


@dataclasses.dataclass
class MeasuredVersion:
    """Size of a version, and seconds from its optimizer step to its event and to its service."""

    size_bytes: int
    changed_share: float | None
    published_s: float
    served_s: float
    pause_ms: float


def build(folder: Path, size: Size) -> None:
    """Write the policy as a Hugging Face directory."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    from dart_streams.policy import tiny

    tiny.build(folder)
    if size == "larger":
        tables = tiny.build_configuration().to_dict()
        del tables["text_config"]["layer_types"]
        for part, values in LARGER.items():
            tables[part] |= values
        Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(**tables)).save_pretrained(folder)


class OptimizerSteps:
    """Trainer's learner, stepping on the likelihood of changing answers."""

    def __init__(self, config: Config, ranks: Any) -> None:
        from dart_streams.policy.rendering import Renderer
        from trainer.learning.learner import Learner

        folder = Path(config.policy.path)
        self.renderer = Renderer(folder, config.policy.min_pixels, config.policy.max_pixels)
        self.learner = Learner(folder, self.renderer, config.trainer, ranks)
        self.made = 0

    def step(self) -> None:
        """Make one AdamW step."""
        from dart_streams.policy import probe
        from trainer.data.samples import TrainingSample
        from trainer.learning import step

        prompt = self.renderer.prompt(probe.probe_turns())
        self.made += 1
        answers = [
            f"Action: click(start_box='({(31 * self.made + 7 * row) % 150},{(17 * self.made + 11 * row) % 200})')"
            for row in range(ROWS)
        ]
        items = [
            TrainingSample(prompt=prompt.token_ids, images=prompt.images, answer=self.renderer.answer_tokens(answer))
            for answer in answers
        ]
        batch = self.learner.collator.collate(items, {prompt.images[0].sha256: probe.draw_screen()})
        scorer = self.learner.scorer
        logp_BA, _ = scorer(batch.to(scorer.forbidden_V.device))
        (-logp_BA.mean()).backward()
        step.apply(scorer, self.learner.optimizer, self.learner.settings.grad_clip)


def measure(folder: Path, plan: KindsPlan) -> dict[str, Any]:
    """Measure with private services; return the metrics."""
    model = folder / "policy"
    build(model, plan.size)
    found: dict[str, Any] = {}
    with private_services() as running, joined_alone() as ranks:
        for kind in PUBLISHED:
            config = write_config(
                running,
                folder,
                f"bench-{kind}",
                policy={"path": str(model)},
                rollout={"vllm": {"parity_nats": PARITY_NATS}},
                trainer={"weights_uri": str(folder / kind), "learning_rate": plan.learning_rate, **PUBLISHED[kind]},
            )
            admin.apply_all(config.bus)
            create_schema(config.store)
            steps = OptimizerSteps(config, ranks)
            found[kind] = kind_metrics(asyncio.run(follow(config, folder, steps, plan.versions)))
            if kind == "full":
                parameters = sum(value.numel() for value in steps.learner.scorer.policy.parameters())
    return {
        "parameters": parameters,
        "learning_rate": plan.learning_rate,
        "versions": plan.versions,
        "kinds": found,
        "ratio": round(found["full"]["bytes"]["p50"] / found["delta"]["bytes"]["p50"], 1),
        "adapter_ratio": round(found["full"]["bytes"]["p50"] / found["adapter"]["bytes"]["p50"], 1),
    }


@contextlib.contextmanager
def joined_alone() -> Iterator[Any]:
    """Be a training job of one rank."""
    from trainer.ranks import join_job

    with join_job() as ranks:
        yield ranks


async def follow(config: Config, folder: Path, steps: OptimizerSteps, versions: int) -> list[MeasuredVersion]:
    """Publish versions one by one, each once the previous is served; return those after the first two (warm-up)."""
    from trainer.publish import WeightPublisher
    from trainer.state import TrainerState

    found: list[MeasuredVersion] = []
    with WeightPublisher(config, epoch=1) as publisher:
        async with Workers(config, folder, 1) as workers:
            publisher.begin(None, steps.learner.snapshot())
            await workers.all_serve(0, START_TIMEOUT_S)
            for number in range(1, versions + 2):
                await asyncio.to_thread(steps.step)
                stepped_ms, started = now_ms(), time.perf_counter()
                snapshot = await asyncio.to_thread(steps.learner.snapshot)
                files = await asyncio.to_thread(publisher.publish, TrainerState(version=number), snapshot)
                published_s = time.perf_counter() - started
                await workers.all_serve(number, SWITCH_TIMEOUT_S)
                serving = workers.serving[workers.names[0]]
                served_s = (serving.since_ms - stepped_ms) / 1000
                if serving.sha256 != files.own.sha256:
                    raise UserError(f"version {number}: served {serving.sha256}, published {files.own.sha256}")
                pause_ms = serving.pause_ms or 0.0
                found.append(MeasuredVersion(files.size_bytes, files.changed_share, published_s, served_s, pause_ms))
    return found[1:]


def kind_metrics(measured: Sequence[MeasuredVersion]) -> dict[str, Any]:
    """Return the metrics of one kind."""
    shares = [version.changed_share for version in measured if version.changed_share is not None]
    return {
        "bytes": median_and_max([version.size_bytes for version in measured], 0),
        "served_s": median_and_max([version.served_s for version in measured], 3),
        "published_s": median_and_max([version.published_s for version in measured], 3),
        "pause_ms": median_and_max([version.pause_ms for version in measured], 1),
        "digests_equal": len(measured),
    } | ({"changed_share": median_and_max(shares, 5)} if shares else {})


def median_and_max(values: Sequence[float], digits: int) -> dict[str, float]:
    """Return median and maximum."""
    return {"p50": round(statistics.median(values), digits or None), "max": round(max(values), digits or None)}
