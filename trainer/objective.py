"""The objective as pure functions of tensors: clipped policy loss, truncated importance weights, KL, entropy.

Three policies meet in it: *new* (being differentiated), *old* (the trainer's at the start of the optimizer step) and
*rollout* (the engine's at generation time). PPO's ratio corrects new against old; the truncated weight corrects old
against rollout. Sources: PPO (arXiv 1707.06347), clip-higher (DAPO, arXiv 2503.14476), dual clip (arXiv 1912.09729),
truncated importance sampling and its use in DART (arXiv 2509.23866), the k3 estimator (Schulman, "Approximating KL
divergence"). By configuration also GSPO (arXiv 2507.18071), CISPO (arXiv 2506.13585) and masked importance sampling.

Shapes: B sequences, A answer tokens, V vocabulary. Unsuffixed tensors, whose names are public, are (B, A) or
broadcastable to it. Masked positions contribute nothing, whatever they hold (also inf and nan).
"""

from typing import Literal

import torch
from torch import Tensor

from dart_streams.config.clip_bounds import CLIP_BOUNDS

Metrics = dict[str, Tensor]
Aggregate = Literal["tokens", "sequences"]
"""The mean that a loss is: over tokens, or over sequences (answers) of each one's mean over its tokens."""
PPO, GSPO, CISPO = (CLIP_BOUNDS[name] for name in ("ppo", "gspo", "cispo"))

MAX_LOG_RATIO = 20.0
"""Log-ratios (nats) are clamped to plus or minus this before ``exp``, without gradient beyond it, as verl does.

``exp`` overflows float32 at 89 nats, and a product of 0 and inf in the backward pass would be nan for the whole step.
"""
MAX_KL = 10.0
"""The largest KL estimate of a token (nats), without gradient beyond it, as verl's ``low_var_kl`` has it.

It is met where the reference's probability is 13 times the policy's, or the policy's e^11 times the reference's.
"""
TRUNCATION_MARGIN = 1e-3
"""By what share a ratio exceeds the cap before its token counts as truncated: a weight lower by less is none.

With the same weights ratios differ from 1 by float noise, at a cap of 1 on either side of it. In float32 engine and
trainer agree to 1e-4 nats a token (tests/model/test_vllm_engine.py); this is ten times that. Clipped ratios need no
such margin: their bounds are apart from 1, where ratios without an update are.
"""


def truncated_weights(old_logp: Tensor, rollout_logp: Tensor, cap: float = 1.0) -> Tensor:
    """Return ``min(exp(old_logp - rollout_logp), cap)``, without gradient; (..., A) each.

    Equal inputs give 1, so a step without rollout log-probabilities passes its ``old_logp`` twice.
    """
    return (old_logp - rollout_logp).detach().exp().clamp(max=cap)


def truncation_mask(old_logp: Tensor, rollout_logp: Tensor, cap: float = 1.0) -> Tensor:
    """Return where :func:`truncated_weights` is below the plain ratio by more than float noise; booleans (..., A)."""
    return (old_logp - rollout_logp).detach().exp() > cap * (1.0 + TRUNCATION_MARGIN)


def masked_weights(old_logp: Tensor, rollout_logp: Tensor, low: float = 0.5, high: float = 5.0) -> Tensor:
    """Return ``exp(old_logp - rollout_logp)`` where it is within [low, high], elsewhere 0; without gradient.

    Masked importance sampling as in IcePop (the bounds are its own): a token on which engine and trainer disagree too
    much has no gradient, instead of a small one.
    """
    ratio = (old_logp - rollout_logp).detach().exp()
    return torch.where((ratio >= low) & (ratio <= high), ratio, 0.0)


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
        (B, A) each, or broadcastable to it; ``mask`` is true (or non-zero) for the tokens that count.
    denominator
        What the sum is divided by: the count of tokens (or sequences) of the whole update, so that the losses of its
        micro-batches add up to one mean. None means this batch's own count.
    dual_clip
        With a negative advantage, ``min(...)`` is at least this many times the advantage (dual-clip PPO): a ratio that
        has run away can't dominate the step. None means no such bound.
    aggregate
        ``tokens``: the sum is over all tokens. ``sequences``: it is over rows of their means, so that each answer
        counts alike, however long it is; rows without tokens do not count.

    Returns
    -------
    loss
        A scalar: the mean over masked tokens (or sequences), or the sum over ``denominator``.
    metrics
        Scalars without gradient, aggregated as the loss is, so those of micro-batches add up as it does:
        ``clip_fraction`` (tokens whose gradient the clip removed), ``ratio``, ``weight``, ``tokens`` (a plain count).
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
    """Return GSPO's loss: as :func:`policy_loss`, with one ratio a sequence, the geometric mean over its tokens.

    So a sequence is clipped whole. Each token carries that ratio's value with the gradient of its own log-probability
    (GSPO-token). With one advantage and one weight a sequence, the mean over sequences has GSPO's own gradient. The
    mean over tokens, which the paper does not have, weighs a sequence by its length. The defaults of the clip are the
    paper's: a mean over tokens moves far less than a token. Source: arXiv 2507.18071, equations 5 to 7.
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

    No token loses its gradient, also where PPO's clip would remove it; ``clip_fraction`` counts the clipped ratios.
    Source: MiniMax-M1, arXiv 2506.13585, which bounds the ratio above only: hence ``clip_low`` 1, below
    which no ratio is.
    """
    keep_BA = token_mask(new_logp, mask, advantage)
    log_ratio_BA = clamp_log_ratio(new_logp - old_logp, keep_BA).detach()
    ratio_BA = log_ratio_BA.exp()
    bound_BA = ratio_BA.clamp(1.0 - clip_low, 1.0 + clip_high)
    objective_BA = bound_BA * advantage.detach() * mask_values(new_logp, keep_BA)
    return mean_loss(objective_BA, bound_BA != ratio_BA, log_ratio_BA, weight, keep_BA, denominator, aggregate)


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
    """Return ``mask_BA`` as booleans, in the shape that the loss of each token has."""
    shape = torch.broadcast_shapes(new_logp_BA.shape, mask_BA.shape, advantage_BA.shape)
    return torch.broadcast_to(mask_BA.bool(), shape)


def clamp_log_ratio(log_ratio_BA: Tensor, keep_BA: Tensor) -> Tensor:
    """Return log-ratios within :data:`LOG_RATIO_MOST` where ``keep_BA``, elsewhere 0."""
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
    """Return the weighted loss and the metrics that all objectives share, aggregated as :func:`policy_loss` says."""
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
    """Return the number of tokens that count, or of sequences with any; a scalar."""
    return keep_BA.sum() if aggregate == "tokens" else keep_BA.any(-1).sum()


def aggregate_values(values_BA: Tensor, keep_BA: Tensor, aggregate: Aggregate) -> Tensor:
    """Return the sum of ``values_BA`` over tokens, or over sequences of each one's mean over its tokens; a scalar.

    Over :func:`count` of all micro-batches it is the mean. What is not in ``keep_BA`` has neither value nor gradient.
    """
    kept_BA = mask_values(values_BA, keep_BA)
    if aggregate == "tokens":
        return kept_BA.sum()
    return (kept_BA.sum(-1) / keep_BA.sum(-1).clamp(min=1)).sum()


def masked_sum(values_BA: Tensor, keep_BA: Tensor) -> Tensor:
    """Return the sum of ``values_BA`` where ``keep_BA``; what is elsewhere does not count, nor does its gradient."""
    return mask_values(values_BA, keep_BA).sum()


def mask_values(values_BA: Tensor, keep_BA: Tensor) -> Tensor:
    """Return ``values_BA`` where ``keep_BA``, elsewhere 0 with a gradient of 0.

    What is taken out after an ``exp`` or a product still has its gradient multiplied by 0, and 0 times inf is nan: so
    mask log-probabilities before they are subtracted. At padding they are -inf, as padding is never sampled.
    """
    return torch.where(keep_BA, values_BA, 0.0)


def kl_k3(new_logp_BA: Tensor, reference_logp_BA: Tensor, mask_BA: Tensor) -> Tensor:
    """Return the k3 estimate of KL(new || reference) of each token sampled from new: ``r - 1 - log r``, r = ref / new.

    It is 0 where ``mask_BA`` (B, A) is not true, and at most :data:`KL_MOST`. Only ``new_logp_BA`` gets a gradient.
    Its expected gradient is that of the other direction, KL(reference || new): ``(1 - r) grad log new`` has under new
    the mean ``-E_ref[grad log new]``. As a loss it so keeps the policy from losing what the reference does.
    """
    log_ratio_BA = clamp_log_ratio(reference_logp_BA.detach() - new_logp_BA, mask_BA.bool())
    return (log_ratio_BA.exp() - 1.0 - log_ratio_BA).clamp(max=MAX_KL)


def token_logp(
    logits_BAV: Tensor, tokens_BA: Tensor, forbidden_V: Tensor, temperature_B: Tensor
) -> tuple[Tensor, Tensor]:
    """Return log-probability and entropy (nats) of each answer token, (B, A) each, as the engine drew it.

    The distribution is the softmax over the allowed tokens only, at the sampling temperature, in float32. Each row of
    ``logits_BAV`` is for the token at its position; ``forbidden_V`` is true for tokens that are never sampled;
    ``temperature_B`` is above 0, and may be a scalar.
    """
    scaled_BAV = logits_BAV.float() / temperature_B.float().reshape(-1, 1, 1)
    logp_BAV = scaled_BAV.masked_fill(forbidden_V, -torch.inf).log_softmax(-1)
    entropy_BA = -torch.where(forbidden_V, 0.0, logp_BAV.exp() * logp_BAV.masked_fill(forbidden_V, 0.0)).sum(-1)
    return logp_BAV.gather(-1, tokens_BA.unsqueeze(-1)).squeeze(-1), entropy_BA
