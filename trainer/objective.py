"""The objective as pure functions of tensors: clipped policy loss, truncated importance weights, KL, entropy.

Three policies meet in it: *new* (being differentiated), *old* (the trainer's at the start of the optimiser step) and
*rollout* (the engine's at generation time). PPO's ratio corrects new against old; the truncated weight corrects old
against rollout. Sources: PPO (arXiv 1707.06347), clip-higher (DAPO, arXiv 2503.14476), truncated importance sampling
and its use in DART (arXiv 2509.23866), the k3 estimator (Schulman, "Approximating KL divergence").

Shapes: B sequences, A answer tokens. Masked positions contribute nothing, whatever they hold (also inf and nan).
"""

import torch
from torch import Tensor

Metrics = dict[str, Tensor]


def truncated_weights(old_logp: Tensor, rollout_logp: Tensor, cap: float = 1.0) -> Tensor:
    """Return ``min(exp(old_logp - rollout_logp), cap)``, without gradient; (..., A) each.

    Equal inputs give 1, so a step without rollout log-probabilities passes its ``old_logp`` twice.
    """
    return (old_logp - rollout_logp).detach().exp().clamp(max=cap)


def policy_loss(
    new_logp: Tensor,
    old_logp: Tensor,
    advantage: Tensor,
    mask: Tensor,
    weight: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    denominator: float | Tensor | None = None,
) -> tuple[Tensor, Metrics]:
    """Return the clipped policy-gradient loss of a batch and its metrics.

    A token's loss is ``-weight * min(ratio * advantage, clip(ratio, 1 - clip_low, 1 + clip_high) * advantage)`` with
    ``ratio = exp(new_logp - old_logp)``. Only ``new_logp`` gets a gradient.

    Parameters
    ----------
    new_logp, old_logp, advantage, mask, weight
        (B, A) each, or broadcastable to it; ``mask`` is true (or non-zero) for the tokens that count.
    denominator
        What the sum over tokens is divided by: the token count of the whole optimiser step, so that the losses of its
        micro-batches add up to one mean. None means this batch's own count.

    Returns
    -------
    loss
        A scalar: the mean over masked tokens, or their sum over ``denominator``.
    metrics
        Scalars without gradient, divided by the same number, so those of micro-batches add up as the loss does:
        ``clip_share`` (tokens whose gradient the clip removed), ``ratio``, ``weight``, ``tokens`` (a plain count).
    """
    old_logp, advantage, weight = old_logp.detach(), advantage.detach(), weight.detach()
    keep = torch.broadcast_to(mask.bool(), torch.broadcast_shapes(new_logp.shape, mask.shape, advantage.shape))
    ratio = torch.where(keep, new_logp - old_logp, 0.0).exp()
    free = ratio * advantage
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantage
    token_loss = -weight * torch.minimum(free, clipped)
    tokens = keep.sum()
    total = tokens.clamp(min=1) if denominator is None else denominator
    metrics = {
        "clip_share": masked_sum((clipped < free).float(), keep) / total,
        "ratio": masked_sum(ratio.detach(), keep) / total,
        "weight": masked_sum(weight.float(), keep) / total,
        "tokens": tokens,
    }
    return masked_sum(token_loss, keep) / total, metrics


def masked_sum(values: Tensor, keep: Tensor) -> Tensor:
    """Return the sum of ``values`` where ``keep``; what is elsewhere does not count, nor does its gradient."""
    return torch.where(keep, values, 0.0).sum()


def kl_k3(new_logp: Tensor, reference_logp: Tensor) -> Tensor:
    """Return the k3 estimate of KL(new, reference) of each sampled token, at least 0: ``r - 1 - log r``."""
    log_ratio = reference_logp.detach() - new_logp
    return log_ratio.exp() - 1.0 - log_ratio


def token_logp(logits: Tensor, tokens: Tensor, forbidden: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-probability and entropy (nats) of each answer token, as the engine drew it.

    The distribution is the softmax over the allowed tokens only, at the sampling temperature, in float32.

    Parameters
    ----------
    logits
        (B, A, V), each row's logits for the token at its position.
    tokens
        (B, A) token ids.
    forbidden
        (V,), true for tokens that are never sampled.
    temperature
        (B,) or a scalar, above 0.
    """
    scaled = logits.float() / temperature.float().reshape(-1, 1, 1)
    logp = scaled.masked_fill(forbidden, -torch.inf).log_softmax(-1)
    entropy = -torch.where(forbidden, 0.0, logp.exp() * logp.masked_fill(forbidden, 0.0)).sum(-1)
    return logp.gather(-1, tokens.unsqueeze(-1)).squeeze(-1), entropy
