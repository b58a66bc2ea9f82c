"""Policy objectives as pure functions of tensors: clipped losses, importance weights, KL, entropy.

Three policies meet: *new* (differentiated), *old* (the trainer's at the start of the optimizer step) and *rollout* (the
engine's at generation). The ratio corrects new against old, the importance weight (:mod:`trainer.corrections`) old
against rollout. Objectives in :data:`ROLLOUT_ANCHORED` take the rollout policy as old, without importance weights.
Sources: PPO (arXiv 1707.06347), clip-higher (DAPO, arXiv 2503.14476), dual clip (arXiv 1912.09729), GSPO (arXiv
2507.18071), CISPO (arXiv 2506.13585), DPPO (arXiv 2602.04879), the k3 estimator (Schulman, "Approximating KL
divergence").

Shapes: B sequences, A answer tokens, V vocabulary. Tensors without suffix are (B, A) or broadcastable to it. Masked
positions contribute nothing, even if they hold inf or nan.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor

from dart_streams.config import Trainer
from dart_streams.config.clip_bounds import CLIP_BOUNDS

Metrics = dict[str, Tensor]
Aggregate = Literal["tokens", "sequences"]
"""Mean of the loss: over tokens, or over sequences of their token means."""
PPO, GSPO, CISPO = (CLIP_BOUNDS[name] for name in ("ppo", "gspo", "cispo"))
DPPO_TV, DPPO_KL = CLIP_BOUNDS["dppo_tv"], CLIP_BOUNDS["dppo_kl"]

MAX_LOG_RATIO = 20.0
"""Clamp of log-ratios (nats) before ``exp``, without gradient beyond it, as in verl: exp(89) overflows float32."""
MAX_KL = 10.0
"""Maximum KL estimate of a token (nats), without gradient beyond it, as verl's ``low_var_kl``."""
LEAST_REST = 1e-8
"""Minimum probability of all other tokens in a binary KL, as in verl: a token's own may be 1."""


def policy_loss(
    new_logp: Tensor,
    old_logp: Tensor,
    advantage: Tensor,
    mask: Tensor,
    weight: Tensor,
    clip_low: float = PPO.low.default,
    clip_high: float = PPO.high.default,
    denominator: float | Tensor | None = None,
    dual_clip: float | None = None,
    aggregate: Aggregate = "tokens",
) -> tuple[Tensor, Metrics]:
    """Return the clipped policy-gradient loss of a batch and its metrics.

    A token's loss is ``-weight * min(ratio * advantage, clip(ratio, 1 - clip_low, 1 + clip_high) * advantage)`` with
    ``ratio = exp(new_logp - old_logp)``. Only ``new_logp`` gets a gradient.

    Parameters
    ----------
    new_logp, old_logp, advantage, mask, weight
        (B, A) each, or broadcastable to it; ``mask`` is true (or non-zero) for tokens that count.
    denominator
        Divisor of the sum: tokens (or sequences) of the whole update, so that losses of micro-batches add up to one
        mean. None: this batch's own count.
    dual_clip
        Lower bound of ``min(...)`` for negative advantages, as a multiple of the advantage (dual-clip PPO). None: no
        bound.
    aggregate
        ``tokens``: sum over all tokens. ``sequences``: sum over rows of their means; empty rows do not count.

    Returns
    -------
    loss
        Scalar: the mean over masked tokens (or sequences), or the sum over ``denominator``.
    metrics
        Scalars without gradient, additive over micro-batches: ``clip_fraction`` (tokens whose gradient the clip
        removed), ``ratio``, ``weight``, ``tokens`` (count).
    """
    keep_BA = token_mask(new_logp, mask, advantage)
    log_ratio_BA = clamp_log_ratio(new_logp - old_logp.detach(), keep_BA)
    objective_BA, clipped_BA = clipped_objective(log_ratio_BA.exp(), advantage.detach(), clip_low, clip_high, dual_clip)
    return mean_loss(objective_BA, clipped_BA, log_ratio_BA, weight, keep_BA, denominator, aggregate)


def sequence_loss(
    new_logp: Tensor,
    old_logp: Tensor,
    advantage: Tensor,
    mask: Tensor,
    weight: Tensor,
    clip_low: float = GSPO.low.default,
    clip_high: float = GSPO.high.default,
    denominator: float | Tensor | None = None,
    dual_clip: float | None = None,
    aggregate: Aggregate = "sequences",
) -> tuple[Tensor, Metrics]:
    """Return GSPO's loss: :func:`policy_loss` with one ratio a sequence, the geometric mean over its tokens.

    A sequence is clipped whole. Each token has the gradient of its own log-probability (GSPO-token). The mean over
    sequences is GSPO's; the mean over tokens weighs sequences by length. Source: arXiv 2507.18071, equations 5 to 7.
    """
    keep_BA = token_mask(new_logp, mask, advantage)
    token_BA = mask_values(new_logp - old_logp.detach(), keep_BA)
    sequence_B1 = token_BA.detach().sum(-1, keepdim=True) / keep_BA.sum(-1, keepdim=True).clamp(min=1)
    log_ratio_BA = clamp_log_ratio(sequence_B1 + token_BA - token_BA.detach(), keep_BA)
    objective_BA, clipped_BA = clipped_objective(log_ratio_BA.exp(), advantage.detach(), clip_low, clip_high, dual_clip)
    return mean_loss(objective_BA, clipped_BA, log_ratio_BA, weight, keep_BA, denominator, aggregate)


def clipped_weight_loss(
    new_logp: Tensor,
    old_logp: Tensor,
    advantage: Tensor,
    mask: Tensor,
    weight: Tensor,
    clip_low: float = CISPO.low.default,
    clip_high: float = CISPO.high.default,
    denominator: float | Tensor | None = None,
    aggregate: Aggregate = "tokens",
) -> tuple[Tensor, Metrics]:
    """Return CISPO's loss ``-weight * clip(ratio) * advantage * new_logp``, the clipped ratio without gradient.

    No token loses its gradient; ``clip_fraction`` counts clipped ratios. Source: MiniMax-M1, arXiv 2506.13585, which
    clips above only, hence ``clip_low`` 1.
    """
    keep_BA = token_mask(new_logp, mask, advantage)
    log_ratio_BA = clamp_log_ratio(new_logp - old_logp, keep_BA).detach()
    ratio_BA = log_ratio_BA.exp()
    bound_BA = ratio_BA.clamp(1.0 - clip_low, 1.0 + clip_high)
    objective_BA = bound_BA * advantage.detach() * mask_values(new_logp, keep_BA)
    return mean_loss(objective_BA, bound_BA != ratio_BA, log_ratio_BA, weight, keep_BA, denominator, aggregate)


def total_variation_loss(
    new_logp: Tensor,
    old_logp: Tensor,
    advantage: Tensor,
    mask: Tensor,
    weight: Tensor,
    clip_low: float = DPPO_TV.low.default,
    clip_high: float = DPPO_TV.high.default,
    denominator: float | Tensor | None = None,
    aggregate: Aggregate = "tokens",
) -> tuple[Tensor, Metrics]:
    """Return DPPO's loss ``-weight * M * ratio * advantage``, with the binary total variation.

    ``M`` is 0 for a token that an update would move farther from the old policy, once its probability differs from the
    old one by more than the bound: ``clip_high`` upward, ``clip_low`` downward. Otherwise it is 1. ``old_logp`` are the
    engine's. Source: arXiv 2602.04879, equations 11 to 13; bounds of its authors' example in verl.
    """
    keep_BA = token_mask(new_logp, mask, advantage)
    new_BA, old_BA = mask_values(new_logp.detach(), keep_BA), mask_values(old_logp.detach(), keep_BA)
    shift_BA = new_BA.exp() - old_BA.exp()
    away_BA = torch.where(advantage > 0, shift_BA > clip_high, shift_BA < -clip_low)
    return divergence_loss(new_logp, old_logp, advantage, away_BA, weight, keep_BA, denominator, aggregate)


def binary_kl_loss(
    new_logp: Tensor,
    old_logp: Tensor,
    advantage: Tensor,
    mask: Tensor,
    weight: Tensor,
    clip_low: float = DPPO_KL.low.default,
    clip_high: float = DPPO_KL.high.default,
    denominator: float | Tensor | None = None,
    aggregate: Aggregate = "tokens",
) -> tuple[Tensor, Metrics]:
    """Return DPPO's loss, as :func:`total_variation_loss`, with the binary KL(old || new) in nats.

    The distributions are those of the token against all others. Source: arXiv 2602.04879, equations 11, 12 and 14.
    """
    keep_BA = token_mask(new_logp, mask, advantage)
    new_BA, old_BA = mask_values(new_logp.detach(), keep_BA), mask_values(old_logp.detach(), keep_BA)
    rest_BA = [(-torch.expm1(logp_BA)).clamp(min=LEAST_REST) for logp_BA in (old_BA, new_BA)]
    kl_BA = old_BA.exp() * clamp_log_ratio(old_BA - new_BA, keep_BA) + rest_BA[0] * (rest_BA[0] / rest_BA[1]).log()
    away_BA = torch.where(
        advantage > 0, (kl_BA > clip_high) & (new_BA > old_BA), (kl_BA > clip_low) & (new_BA < old_BA)
    )
    return divergence_loss(new_logp, old_logp, advantage, away_BA, weight, keep_BA, denominator, aggregate)


def divergence_loss(
    new_logp: Tensor,
    old_logp: Tensor,
    advantage: Tensor,
    masked_BA: Tensor,
    weight: Tensor,
    keep_BA: Tensor,
    denominator: float | Tensor | None,
    aggregate: Aggregate,
) -> tuple[Tensor, Metrics]:
    """Return the loss ``-weight * ratio * advantage`` without ``masked_BA``, which ``clip_fraction`` counts."""
    log_ratio_BA = clamp_log_ratio(new_logp - old_logp.detach(), keep_BA)
    objective_BA = torch.where(masked_BA, 0.0, log_ratio_BA.exp() * advantage.detach())
    return mean_loss(objective_BA, masked_BA, log_ratio_BA, weight, keep_BA, denominator, aggregate)


OBJECTIVES: Mapping[str, Callable[..., tuple[Tensor, Metrics]]] = {
    "ppo": policy_loss,
    "gspo": sequence_loss,
    "cispo": clipped_weight_loss,
    "dppo_tv": total_variation_loss,
    "dppo_kl": binary_kl_loss,
}
"""Objectives by configured name."""
ROLLOUT_ANCHORED = frozenset(("dppo_tv", "dppo_kl"))
"""Objectives whose old policy is the rollout policy, where its log-probabilities are known."""


def configured_loss(settings: Trainer) -> Callable[..., tuple[Tensor, Metrics]]:
    """Return the configured objective with its clip bounds and its aggregation."""
    clip = {"clip_low": settings.clip_low, "clip_high": settings.clip_high}
    dual = {"dual_clip": settings.dual_clip.factor} if settings.dual_clip.factor else {}
    aggregate = settings.aggregate or "tokens"
    return functools.partial(OBJECTIVES[settings.objective], **clip, **dual, aggregate=aggregate)


def clipped_objective(
    ratio_BA: Tensor, advantage_BA: Tensor, clip_low: float, clip_high: float, dual_clip: float | None
) -> tuple[Tensor, Tensor]:
    """Return PPO's pessimistic objective of each token, and where a clip removed its gradient."""
    free_BA = ratio_BA * advantage_BA
    clipped_BA = ratio_BA.clamp(1.0 - clip_low, 1.0 + clip_high) * advantage_BA
    objective_BA, removed_BA = torch.minimum(free_BA, clipped_BA), clipped_BA < free_BA
    if dual_clip is None:
        return objective_BA, removed_BA
    floor_BA = dual_clip * advantage_BA
    below_BA = (advantage_BA < 0) & (objective_BA < floor_BA)
    return torch.where(below_BA, floor_BA, objective_BA), removed_BA | below_BA


def token_mask(new_logp_BA: Tensor, mask_BA: Tensor, advantage_BA: Tensor) -> Tensor:
    """Return ``mask_BA`` as booleans, broadcast to the shape of token losses."""
    shape = torch.broadcast_shapes(new_logp_BA.shape, mask_BA.shape, advantage_BA.shape)
    return torch.broadcast_to(mask_BA.bool(), shape)


def clamp_log_ratio(log_ratio_BA: Tensor, keep_BA: Tensor) -> Tensor:
    """Return log-ratios within :data:`MAX_LOG_RATIO`, 0 outside ``keep_BA``."""
    return mask_values(log_ratio_BA, keep_BA).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def mean_loss(
    objective_BA: Tensor,
    clipped_BA: Tensor,
    log_ratio_BA: Tensor,
    weight_BA: Tensor,
    keep_BA: Tensor,
    denominator: float | Tensor | None,
    aggregate: Aggregate,
) -> tuple[Tensor, Metrics]:
    """Return the weighted loss and the metrics of all objectives, aggregated as in :func:`policy_loss`."""
    weight_BA = weight_BA.detach()
    total = count(keep_BA, aggregate).clamp(min=1) if denominator is None else denominator
    metrics = {
        "clip_fraction": aggregate_values(clipped_BA.float(), keep_BA, aggregate) / total,
        "ratio": aggregate_values(log_ratio_BA.detach().exp(), keep_BA, aggregate) / total,
        "weight": aggregate_values(weight_BA.float(), keep_BA, aggregate) / total,
        "tokens": keep_BA.sum(),
    }
    return aggregate_values(-weight_BA * objective_BA, keep_BA, aggregate) / total, metrics


def count(keep_BA: Tensor, aggregate: Aggregate) -> Tensor:
    """Return the number of kept tokens, or of sequences with any; a scalar."""
    return keep_BA.sum() if aggregate == "tokens" else keep_BA.any(-1).sum()


def aggregate_values(values_BA: Tensor, keep_BA: Tensor, aggregate: Aggregate) -> Tensor:
    """Return the sum of kept values, or the sum over sequences of their means; a scalar to divide by :func:`count`."""
    kept_BA = mask_values(values_BA, keep_BA)
    if aggregate == "tokens":
        return kept_BA.sum()
    return (kept_BA.sum(-1) / keep_BA.sum(-1).clamp(min=1)).sum()


def masked_sum(values_BA: Tensor, keep_BA: Tensor) -> Tensor:
    """Return the sum of ``values_BA`` where ``keep_BA``; elsewhere neither value nor gradient counts."""
    return mask_values(values_BA, keep_BA).sum()


def mask_values(values_BA: Tensor, keep_BA: Tensor) -> Tensor:
    """Return ``values_BA`` where ``keep_BA``, else 0 with gradient 0; mask before subtracting: padding is -inf."""
    return torch.where(keep_BA, values_BA, 0.0)


def kl_k3(new_logp_BA: Tensor, reference_logp_BA: Tensor, mask_BA: Tensor) -> Tensor:
    """Return the k3 estimate of KL(new || reference) for tokens sampled from new: ``r - 1 - log r``, r = ref / new.

    It is 0 outside ``mask_BA`` (B, A) and at most :data:`MAX_KL`. Only ``new_logp_BA`` gets a gradient, whose
    expectation is that of KL(reference || new): ``-E_ref[grad log new]``.
    """
    log_ratio_BA = clamp_log_ratio(reference_logp_BA.detach() - new_logp_BA, mask_BA.bool())
    return (log_ratio_BA.exp() - 1.0 - log_ratio_BA).clamp(max=MAX_KL)


def token_logp(
    logits_BAV: Tensor, tokens_BA: Tensor, forbidden_V: Tensor, temperature_B: Tensor
) -> tuple[Tensor, Tensor]:
    """Return log-probability and entropy (nats) of each answer token, (B, A) each, as the engine draws it.

    The distribution is the float32 softmax over allowed tokens at the sampling temperature. ``logits_BAV`` predict the
    tokens at their positions, ``forbidden_V`` marks tokens never sampled, ``temperature_B`` (above 0) may be a scalar.
    """
    scaled_BAV = logits_BAV.float() / temperature_B.float().reshape(-1, 1, 1)
    logp_BAV = scaled_BAV.masked_fill(forbidden_V, -torch.inf).log_softmax(-1)
    entropy_BA = -torch.where(forbidden_V, 0.0, logp_BAV.exp() * logp_BAV.masked_fill(forbidden_V, 0.0)).sum(-1)
    return logp_BAV.gather(-1, tokens_BA.unsqueeze(-1)).squeeze(-1), entropy_BA
