"""One update: gradients over micro-batches and ranks, one optimizer step, and its sums."""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dart_streams.config import Trainer
from trainer.corrections import importance_weights
from trainer.data.collate import MicroBatch
from trainer.hooks import DART, LossInputs, TrainingRules
from trainer.learning.top_tokens import TopTokens
from trainer.objective import (
    ROLLOUT_ANCHORED,
    Aggregate,
    Metrics,
    aggregate_values,
    configured_loss,
    kl_k3,
    mask_values,
    masked_sum,
)
from trainer.ranks import Ranks


class Stopped(Exception):
    """The step was aborted between micro-batches; the weights are unchanged."""


class Sums(NamedTuple):
    """Sums over batches and ranks: up to ``terms`` aggregated as the loss, the others over tokens."""

    loss: float
    clip_share: float
    ratio: float
    entropy: float
    kl_reference: float
    terms: float
    corrected: float
    truncated: float
    difference: float
    kl: float
    same_version: float
    same_difference: float

    def plus(self, other: "Sums") -> "Sums":
        """Return the sums over both."""
        return Sums(*(a + b for a, b in zip(self, other, strict=True)))


def unless_stopped(
    batches: Iterable[MicroBatch], ranks: Ranks, should_stop: Callable[[], bool]
) -> Iterator[MicroBatch]:
    """Yield micro-batches on this rank's device; raise :class:`Stopped` before one if any rank must stop."""
    for batch in batches:
        if ranks.any(should_stop()):
            raise Stopped
        yield batch.to(ranks.device)


def accumulate(
    scorer: nn.Module,
    batches: Iterable[MicroBatch],
    old_BA: Iterable[Tensor] | None,
    settings: Trainer,
    version: int,
    total: float,
    ranks: Ranks,
    should_stop: Callable[[], bool],
    reference: nn.Module | None = None,
    top: TopTokens | None = None,
    rules: TrainingRules = DART,
) -> Sums:
    """Add the gradient of the mean loss to the parameters; return this rank's sums.

    ``total`` is the update's count of tokens or sequences over all ranks. ``old_BA`` are log-probabilities at the start
    of the step; None for its first update. ``top`` collects notable tokens.
    """
    sums = Sums(*[0.0] * len(Sums._fields))
    going = unless_stopped(batches, ranks, should_stop)
    for batch, old_logp_BA in zip(going, itertools.repeat(None) if old_BA is None else old_BA, strict=False):
        loss, part = batch_loss(scorer, batch, old_logp_BA, settings, version, total, reference, top, rules)
        # FSDP averages gradients over the ranks; the loss is a sum over them.
        (loss * ranks.count).backward()
        sums = sums.plus(part)
    return sums


def batch_loss(
    scorer: nn.Module,
    batch: MicroBatch,
    old_logp_BA: Tensor | None,
    settings: Trainer,
    version: int,
    total: float,
    reference: nn.Module | None = None,
    top: TopTokens | None = None,
    rules: TrainingRules = DART,
) -> tuple[Tensor, Sums]:
    """Return a micro-batch's share of the loss, divided by ``total``, and its sums.

    Without ``old_logp_BA`` the log-probabilities of this pass are the old ones. The KL to a frozen ``reference`` has no
    importance weights. The bound ``rules`` may have another policy loss, and additional terms.
    """
    mask_BA, aggregate = batch.mask_BA, settings.aggregate or "tokens"
    new_logp_BA, entropy_BA = (mask_values(values_BA, mask_BA) for values_BA in scorer(batch))
    old_logp_BA = new_logp_BA.detach() if old_logp_BA is None else mask_values(old_logp_BA, mask_BA)
    rollout_logp_BA = torch.where(batch.corrected_BA, batch.rollout_logp_BA, old_logp_BA)
    weight_BA, altered_BA = importance_weights(old_logp_BA, rollout_logp_BA, mask_BA, settings)
    inputs = LossInputs(
        new_logp_BA, old_logp_BA, rollout_logp_BA, entropy_BA, weight_BA, mask_BA, batch, total, settings
    )
    policy, metrics = (rules.loss or objective_loss)(inputs)
    entropy = aggregate_values(entropy_BA, mask_BA, aggregate) / total
    kl = kl_to(reference, batch, new_logp_BA, aggregate) / total
    loss = policy + settings.kl_beta * kl - settings.entropy_coef * entropy
    terms = rules.terms(inputs) if rules.terms else torch.zeros_like(loss)
    loss = loss + terms if rules.terms else loss
    log_ratio_BA = old_logp_BA - rollout_logp_BA
    if top is not None and new_logp_BA.requires_grad:
        noted = functools.partial(top.note, batch, new_logp_BA.detach(), log_ratio_BA.detach(), weight_BA.detach())
        new_logp_BA.register_hook(noted)
    same_BA = batch.corrected_BA & (batch.versions_BA == version)
    sums = torch.stack(
        [
            loss.detach(),
            metrics["clip_fraction"],
            metrics["ratio"],
            entropy.detach(),
            kl.detach(),
            terms.detach(),
            batch.corrected_BA.sum(),
            masked_sum(altered_BA.float(), batch.corrected_BA),
            masked_sum(log_ratio_BA.abs(), batch.corrected_BA),
            kl_k3(rollout_logp_BA, old_logp_BA, batch.corrected_BA).sum(),
            same_BA.sum(),
            masked_sum(log_ratio_BA.abs(), same_BA),
        ]
    )
    return loss, Sums(*sums.double().tolist())


def objective_loss(inputs: LossInputs) -> tuple[Tensor, Metrics]:
    """Return the configured objective of a micro-batch."""
    settings = inputs.settings
    anchor_BA = inputs.rollout_logp_BA if settings.objective in ROLLOUT_ANCHORED else inputs.old_logp_BA
    return configured_loss(settings)(
        inputs.new_logp_BA,
        anchor_BA,
        inputs.batch.advantage_B1,
        inputs.mask_BA,
        inputs.weight_BA,
        denominator=inputs.total,
    )


def kl_to(reference: nn.Module | None, batch: MicroBatch, new_logp_BA: Tensor, aggregate: Aggregate) -> Tensor:
    """Return the summed KL of a micro-batch to a frozen reference; 0 without one."""
    if reference is None:
        return torch.zeros((), device=new_logp_BA.device)
    with torch.no_grad():
        reference_logp_BA, _ = reference(batch)
    return aggregate_values(kl_k3(new_logp_BA, reference_logp_BA, batch.mask_BA), batch.mask_BA, aggregate)


def apply(scorer: nn.Module, optimizer: torch.optim.Optimizer, grad_clip: float) -> float:
    """Clip the gradient, update the weights unless it is not finite, reset it; return its norm before clipping."""
    norm = nn.utils.clip_grad_norm_(scorer.parameters(), grad_clip)
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    value = float(norm)
    if math.isfinite(value):
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return value


def mean_metrics(sums: Sums, updates: int) -> dict[str, float]:
    """Return a step's metrics from its sums: the first six as means over updates, the others over tokens."""
    corrected, same = max(sums.corrected, 1.0), max(sums.same_version, 1.0)
    return {
        "loss": sums.loss / updates,
        "clip_share": sums.clip_share / updates,
        "ratio": sums.ratio / updates,
        "entropy": sums.entropy / updates,
        "kl_reference": sums.kl_reference / updates,
        "loss_terms": sums.terms / updates,
        "truncated_share": sums.truncated / corrected,
        "mismatch": sums.difference / corrected,
        "kl_rollout": sums.kl / corrected,
        "same_version_tokens": sums.same_version / updates,
        "same_version_mismatch": sums.same_difference / same,
    }
