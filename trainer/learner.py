"""The model, its optimiser and what turns groups into one update: the part of the trainer that runs on every rank."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import structlog
import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from dart_streams.config import Trainer
from dart_streams.policy.rendering import Renderer
from trainer import policy, step
from trainer.batch import Collator
from trainer.prefetch import ReadyGroup
from trainer.ranks import Ranks

log = structlog.get_logger()


class Learned(NamedTuple):
    """What an update gave. ``updated`` is false if there was nothing to learn from, or the gradient was not finite."""

    updated: bool
    figures: dict[str, float]
    tokens: int
    sequences: int
    train_ms: float


class Learner:
    """Learns from batches of groups. All methods are collective.

    With ``kl_beta`` it also holds the policy as it was at first, frozen, to stay near it.
    """

    def __init__(self, folder: Path, renderer: Renderer, settings: Trainer, ranks: Ranks) -> None:
        self.settings = settings
        self.ranks = ranks
        self.collator = Collator(renderer)
        mesh = init_device_mesh(ranks.device.type, (ranks.count,))
        scorer = policy.load(folder, renderer, ranks.device, settings.recompute)
        self.scorer = policy.shard(scorer, mesh, settings.dtype)
        self.reference: policy.Scorer | None = None
        if settings.kl_beta:
            frozen = policy.load(folder, renderer, ranks.device).requires_grad_(False)
            self.reference = policy.shard(frozen, mesh, settings.dtype)
        self.optimizer = torch.optim.AdamW(
            self.scorer.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
        )

    def learn(self, groups: Sequence[ReadyGroup], version: int, stopping: Callable[[], bool]) -> Learned:
        """Make one optimiser step of all ranks' samples.

        Raises
        ------
        step.Stopped
            If ``stopping`` says so before the update; the weights are as they were.
        """
        started = time.monotonic()
        samples = [item for group in groups for item in group.samples]
        own_tokens = sum(len(item.answer) for item in samples)
        tokens, sequences = self.ranks.total([own_tokens, len(samples)])
        if not tokens:
            return Learned(False, {}, 0, 0, 0.0)
        count = int(self.ranks.largest(math.ceil(len(samples) / self.settings.micro_batch)))
        batches = self.collator.batches(groups, self.settings.micro_batch, count)
        try:
            own = step.accumulate(
                self.scorer, batches, self.settings, version, tokens, self.ranks, stopping, self.reference
            )
        except step.Stopped:
            self.optimizer.zero_grad(set_to_none=True)
            raise
        grad_norm = step.apply(self.scorer, self.optimizer, self.settings.grad_clip)
        figures = step.figures(step.Sums(*self.ranks.total(list(own)))) | {"grad_norm": grad_norm}
        updated = math.isfinite(grad_norm)
        if not updated:
            log.error("gradient not finite: the batch is left out", grad_norm=grad_norm, loss=figures["loss"])
        return Learned(updated, figures, int(tokens), int(sequences), (time.monotonic() - started) * 1000)

    def weights(self) -> Mapping[str, Tensor]:
        """Return the whole state on rank 0, under the model's own names, and nothing elsewhere."""
        return policy.gathered(self.scorer.policy, self.ranks.first)
