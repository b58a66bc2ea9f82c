"""Steps of made-up groups by the ranks of a job; rank 0 writes the first update's gradients."""

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import torch
from torch.distributed.tensor import DTensor

from benchmarks.synthetic_groups import SMALL, Maker
from dart_streams.config import parse
from dart_streams.policy.rendering import Renderer
from tests.model.forkserver import run_ranks
from trainer.data.distinct import count_distinct
from trainer.data.rows import RowKinds
from trainer.data.samples import ReadyGroup, select
from trainer.data.shares import share
from trainer.data.successes import sft_group, successes_of
from trainer.learning import step, supported_rows
from trainer.learning.learner import Learner
from trainer.ranks import Ranks, join_job


def ready(maker: Maker, index: int, ranks: Ranks, to_imitate: bool = False) -> ReadyGroup:
    """Return a rank's share of made-up group ``index``, or of its successes."""
    made = maker.group(index)
    limits = maker.config.policy
    group = sft_group("imitate", successes_of([made.group])) if to_imitate else made.group
    [members] = share([group], ranks.rank, [0] * ranks.count)
    selection = select(group, members, made.observations, maker.renderer, limits)
    return ReadyGroup(
        group=group,
        samples=selection.samples,
        images=made.blobs,
        refused=Counter(),
        read_ms=0.0,
        distinct_tokens=count_distinct(selection.samples, made.observations, maker.renderer, limits),
    )


COUNTED_BY_RANK = {"rows", "tokens_computed", "tokens_distinct", "images_encoded", "images_distinct"}
"""Metrics that depend on how ranks share a group: what members have in common is computed by each."""


class StepSetup(NamedTuple):
    """A step: adapters of ``rank`` or none, trajectories of at most ``steps`` actions, settings of the ``policy``.

    ``trainer`` are other keys. Steps are rows ``alone``, or as the model supports them.
    """

    minibatches: int = 1
    aggregate: str = "tokens"
    rank: int = 0
    steps: int = 3
    policy: Mapping[str, int] = {}
    alone: bool = False
    trainer: Mapping[str, Any] = {}


def main(job: Mapping[str, str], model: Path, folder: Path, setups: Mapping[str, StepSetup]) -> None:
    """Make the step of each setup; write its first update's gradients, its figures, and the weights after the last.

    ``job`` is what torchrun would put into the environment.
    """
    os.environ.update(job)
    with join_job() as ranks:
        for name, setup in setups.items():
            made = step_by(ranks, model, setup)
            if ranks.first:
                torch.save(made, folder / f"{name}.pt")


def step_by(ranks: Ranks, model: Path, setup: StepSetup) -> dict[str, Any]:
    """Return what a step of made-up groups gives, as this rank has it."""
    trainer = {
        "micro_batch": 4,
        "minibatches": setup.minibatches,
        "aggregate": setup.aggregate,
        "entropy_coef": 0.01,
        "kl_beta": 0.1,
        "imitate": {"trajectories": 1, "weight": 0.5},
        "lora": {"rank": setup.rank},
        **setup.trainer,
    }
    config = parse({"policy": {"path": str(model), **setup.policy}, "trainer": trainer})
    renderer = Renderer(model, config.policy.min_pixels, config.policy.max_pixels)
    gradients: dict[str, torch.Tensor] = {}

    def apply(scorer: torch.nn.Module, optimizer: torch.optim.Optimizer, grad_clip: float) -> float:
        for name, parameter in scorer.named_parameters():
            gradient = parameter.grad
            if gradient is not None and name not in gradients:
                whole = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
                gradients[name] = whole.clone()  # clipped in place afterwards
        return before(scorer, optimizer, grad_clip)

    before = step.apply
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, "apply", apply)
        if setup.alone:
            patch.setattr(supported_rows, "find_kinds", lambda *_: RowKinds())
        learner = Learner(model, renderer, config.trainer, ranks)
        maker = Maker(config, renderer, SMALL._replace(steps=setup.steps))
        # Rank 1 has no sample of the last group: shares need not be equal.
        groups = [ready(maker, index, ranks) for index in range(3)]
        learned = learner.learn(groups, 0, lambda: False, [ready(maker, 3, ranks, to_imitate=True)])
    weights = learner.weights()
    snapshot = learner.snapshot()
    return {
        "gradients": gradients,
        "figures": learned.metrics,
        "updates": learned.updates,
        "top_tokens": msgspec.to_builtins(learned.top_tokens),
        "weights": dict(weights),
        "published": dict(snapshot.tensors),
        "adapter": snapshot.adapter and snapshot.adapter._asdict(),
        "probe": snapshot.probe.logprobs,
    }


def steps_of(
    model: Path, count: int, folder: Path, setups: Mapping[str, StepSetup], nodes: int = 1
) -> dict[str, dict[str, Any]]:
    """Return what ``count`` ranks on ``nodes`` make of the same groups with each setup, one after the other."""
    run_ranks(count, main, model, folder, setups, limit_s=1000, nodes=nodes)
    return {name: torch.load(folder / f"{name}.pt") for name in setups}
