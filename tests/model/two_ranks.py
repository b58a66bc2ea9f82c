"""One step of made-up groups, as one rank of a job; rank 0 writes the first update's gradients."""

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.distributed.tensor import DTensor

from benchmarks.synthetic_groups import Maker
from dart_streams.config import parse
from dart_streams.policy.rendering import Renderer
from tests.model.forkserver import run_ranks
from trainer.data.samples import ReadyGroup, select, share
from trainer.data.successes import sft_group, successes_of
from trainer.learning import step
from trainer.learning.learner import Learner
from trainer.ranks import Ranks, join_job


def ready(maker: Maker, index: int, ranks: Ranks, to_imitate: bool = False) -> ReadyGroup:
    """Return a rank's share of made-up group ``index``, or of its successes."""
    made = maker.group(index)
    limits = maker.config.policy
    group = sft_group("imitate", successes_of([made.group])) if to_imitate else made.group
    members = share(group, ranks.rank, ranks.count)
    selection = select(group, members, made.observations, maker.renderer, limits)
    return ReadyGroup(group=group, samples=selection.samples, images=made.blobs, refused=Counter(), read_ms=0.0)


def main(job: Mapping[str, str], model: Path, result: Path, minibatches: int, aggregate: str, rank: int) -> None:
    """Write the gradients before the first update, the figures, and the weights after the last.

    ``job`` is what torchrun would put into the environment; ``rank`` is that of adapters, or 0.
    """
    os.environ.update(job)
    torch.set_num_threads(1)
    trainer = {
        "micro_batch": 4,
        "minibatches": minibatches,
        "aggregate": aggregate,
        "entropy_coef": 0.01,
        "kl_beta": 0.1,
        "imitate": {"trajectories": 1, "weight": 0.5},
        "lora": {"rank": rank},
    }
    config = parse({"policy": {"path": str(model)}, "trainer": trainer})
    with join_job() as ranks:
        renderer = Renderer(model, config.policy.min_pixels, config.policy.max_pixels)
        learner = Learner(model, renderer, config.trainer, ranks)
        gradients: dict[str, torch.Tensor] = {}

        def apply(scorer: torch.nn.Module, optimizer: torch.optim.Optimizer, grad_clip: float) -> float:
            for name, parameter in scorer.named_parameters():
                gradient = parameter.grad
                if gradient is not None and name not in gradients:
                    whole = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
                    gradients[name] = whole.clone()  # clipped in place afterwards
            return before(scorer, optimizer, grad_clip)

        before, step.apply = step.apply, apply
        maker = Maker(config, renderer)
        # Rank 1 has no sample of the last group: shares need not be equal.
        groups = [ready(maker, index, ranks) for index in range(3)]
        learned = learner.learn(groups, 0, lambda: False, [ready(maker, 3, ranks, to_imitate=True)])
        weights = learner.weights()
        snapshot = learner.snapshot()
        if ranks.first:
            torch.save(
                {
                    "gradients": gradients,
                    "figures": learned.metrics,
                    "updates": learned.updates,
                    "top_tokens": msgspec.to_builtins(learned.top_tokens),
                    "weights": dict(weights),
                    "published": dict(snapshot.tensors),
                    "adapter": snapshot.adapter and snapshot.adapter._asdict(),
                    "probe": snapshot.probe.logprobs,
                },
                result,
            )


def step_of(
    model: Path, count: int, result: Path, minibatches: int, rank: int = 0, aggregate: str = "tokens"
) -> dict[str, Any]:
    """Return what ``count`` ranks make of the same groups, with adapters of ``rank``."""
    run_ranks(count, main, model, result, minibatches, aggregate, rank, limit_s=500)
    return torch.load(result)
