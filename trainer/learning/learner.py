"""The model, its optimiser and what turns groups into one update: the part of the trainer that runs on every rank."""

import copy
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog
import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from dart_streams.config import DualClip, Trainer
from dart_streams.policy import probe
from dart_streams.policy.probe import Probe
from dart_streams.policy.rendering import Renderer
from trainer.data.collate import Collator, MicroBatch
from trainer.data.prefetch import ReadyGroup
from trainer.data.samples import TrainingSample
from trainer.learning import model as policy
from trainer.learning import step
from trainer.learning.ranks import Ranks

log = structlog.get_logger()


class WeightSnapshot(NamedTuple):
    """What a version of the weights consists of."""

    tensors: Mapping[str, Tensor]
    probe: Probe


class Learned(NamedTuple):
    """What an update gave. ``updated`` is false if there was nothing to learn from, or the gradient was not finite."""

    updated: bool
    figures: dict[str, float]
    tokens: int
    sequences: int
    train_ms: float


class Update(NamedTuple):
    """An update's sums on this rank, and the norm of its gradient over all ranks, before it was clipped."""

    sums: step.Sums
    grad_norm: float


def together(parts: Sequence[Learned]) -> Learned:
    """Return what several updates gave, as of one step: figures are means, weighted by tokens; counts are sums."""
    tokens = sum(part.tokens for part in parts)
    known = [part for part in parts if part.tokens]
    names = known[0].figures if known else {}
    figures = {name: sum(part.figures[name] * part.tokens for part in known) / tokens for name in names}
    return Learned(
        updated=any(part.updated for part in parts),
        figures=figures,
        tokens=tokens,
        sequences=sum(part.sequences for part in parts),
        train_ms=sum(part.train_ms for part in parts),
    )


def never() -> bool:
    """Do not stop."""
    return False


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
        # No weight decay: a run is too short for it to matter, and it would pull a pretrained model from its weights.
        self.optimizer = torch.optim.AdamW(
            self.scorer.parameters(), lr=settings.learning_rate, weight_decay=0.0, fused=True
        )

    def learn(self, groups: Sequence[ReadyGroup], version: int, stopping: Callable[[], bool]) -> Learned:
        """Make one step of all ranks' samples: ``epochs`` passes of ``minibatches`` updates each.

        Raises
        ------
        step.Stopped
            If ``stopping`` says so before the first update; the weights are as they were. Later it is too late: the
            step is made whole.
        """
        started = time.monotonic()
        samples = [item for group in groups for item in group.samples]
        own_tokens = sum(len(item.answer) for item in samples)
        tokens, sequences = self.ranks.total([own_tokens, len(samples)])
        if not tokens:
            return Learned(False, {}, 0, 0, 0.0)
        pieces = self.collator.pieces(groups, self.settings.micro_batch, self.settings.micro_batch_tokens)
        count = int(self.ranks.largest(len(pieces)))
        batches = self.collator.batches(groups, pieces, count)
        try:
            updates = self._updates(batches, count, tokens, version, stopping)
        except step.Stopped:
            self.optimizer.zero_grad(set_to_none=True)
            raise
        figures = self._figures(updates)
        lost = sum(not math.isfinite(update.grad_norm) for update in updates)
        if lost:
            log.error("gradient not finite: left out", updates=lost, of=len(updates), loss=figures["loss"])
        return Learned(lost < len(updates), figures, int(tokens), int(sequences), (time.monotonic() - started) * 1000)

    def imitator(self) -> "Learner":
        """Return a learner of the same weights and optimiser that imitates: groups of advantage 1, an update each.

        At ratio 1 the gradient of the policy loss of advantage 1 is that of the answers' mean negative log-likelihood.
        """
        other = copy.copy(self)
        other.settings = msgspec.structs.replace(
            self.settings, minibatches=1, epochs=1, objective="ppo", dual_clip=DualClip(), kl_beta=0.0, entropy_coef=0.0
        )
        return other

    def _updates(
        self, batches: Iterable[MicroBatch], count: int, tokens: float, version: int, stopping: Callable[[], bool]
    ) -> list[Update]:
        parts = min(self.settings.minibatches, count)
        if parts * self.settings.epochs == 1:
            return [self._update(batches, None, tokens, version, stopping)]
        kept = list(batches)
        old = step.scored(self.scorer, kept, self.ranks, stopping)
        cuts = [round(number * count / parts) for number in range(parts + 1)]
        pieces = [slice(start, end) for start, end in itertools.pairwise(cuts)]
        counts = self.ranks.total([float(sum(batch.mask_BA.sum().item() for batch in kept[piece])) for piece in pieces])
        updates: list[Update] = []
        for _ in range(self.settings.epochs):
            for piece, share in zip(pieces, counts, strict=True):
                may_stop = never if updates else stopping
                updates.append(self._update(kept[piece], old[piece], max(share, 1.0), version, may_stop))
        return updates

    def _update(
        self,
        batches: Iterable[MicroBatch],
        old: Iterable[Tensor] | None,
        tokens: float,
        version: int,
        stopping: Callable[[], bool],
    ) -> Update:
        sums = step.accumulate(
            self.scorer, batches, old, self.settings, version, tokens, self.ranks, stopping, self.reference
        )
        return Update(sums, step.apply(self.scorer, self.optimizer, self.settings.grad_clip))

    def _figures(self, updates: Sequence[Update]) -> dict[str, float]:
        own = functools.reduce(step.Sums.plus, (update.sums for update in updates))
        norm = sum(update.grad_norm for update in updates) / len(updates)
        return step.figures(step.Sums(*self.ranks.total(list(own))), len(updates)) | {"grad_norm": norm}

    def weights(self) -> Mapping[str, Tensor]:
        """Return the whole state on rank 0, under the model's own names, and nothing elsewhere."""
        return policy.gathered(self.scorer.policy, self.ranks.first)

    def probe(self) -> Probe:
        """Return what the present weights make of the fixed probe."""
        renderer = self.collator.renderer
        prompt, answer = renderer.prompt(probe.turns()), renderer.answer_tokens(probe.ANSWER)
        item = TrainingSample(
            group_id="",
            trajectory_id="",
            step=0,
            prompt=prompt.token_ids,
            images=prompt.images,
            answer=answer,
            logprobs=None,
            versions=[],
            advantage=0.0,
            temperature=1.0,
        )
        images = {prompt.images[0].sha256: probe.screen()}
        with torch.no_grad():
            logp_BA, _ = self.scorer(Collator(renderer).collate([item], images).to(self.ranks.device))
        logprobs = logp_BA[0].tolist()
        return Probe(prompt=prompt.token_ids, tokens=answer, logprobs=logprobs, dtype=self.settings.dtype)

    def release(self) -> WeightSnapshot:
        """Return what a version consists of; the tensors on rank 0 only."""
        return WeightSnapshot(self.weights(), self.probe())
