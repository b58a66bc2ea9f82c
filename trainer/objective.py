"""The objective as pure functions of tensors: clipped policy loss, truncated importance weights, KL, entropy.

Three policies meet in it: *new* (being differentiated), *old* (the trainer's at the start of the optimiser step) and
*rollout* (the engine's at generation time). PPO's ratio corrects new against old; the truncated weight corrects old
against rollout. Sources: PPO (arXiv 1707.06347), clip-higher (DAPO, arXiv 2503.14476), dual clip (arXiv 1912.09729),
truncated importance sampling and its use in DART (arXiv 2509.23866), the k3 estimator (Schulman, "Approximating KL
divergence"). By configuration also GSPO (arXiv 2507.18071), CISPO (arXiv 2506.13585) and masked importance sampling.

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


def masked_weights(old_logp: Tensor, rollout_logp: Tensor, low: float = 0.5, high: float = 5.0) -> Tensor:
    """Return ``exp(old_logp - rollout_logp)`` where it is within [low, high], elsewhere 0; without gradient.

    Masked importance sampling as in IcePop (the bounds are its own): a token on which engine and trainer disagree too
    much teaches nothing, instead of a little.
    """
    ratio = (old_logp - rollout_logp).detach().exp()
    return torch.where((ratio >= low) & (ratio <= high), ratio, 0.0)


def policy_loss(
    new_logp: Tensor,
    old_logp: Tensor,
    advantage: Tensor,
    mask: Tensor,
    weight: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    denominator: float | Tensor | None = None,
    dual_clip: float | None = None,
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
    dual_clip
        With a negative advantage, ``min(...)`` is at least this many times the advantage (dual-clip PPO): a ratio that
        has run away can't dominate the step. None means no such bound.

    Returns
    -------
    loss
        A scalar: the mean over masked tokens, or their sum over ``denominator``.
    metrics
        Scalars without gradient, divided by the same number, so those of micro-batches add up as the loss does:
        ``clip_share`` (tokens whose gradient the clip removed), ``ratio``, ``weight``, ``tokens`` (a plain count).
    """
    keep = counted(new_logp, mask, advantage)
    log_ratio = torch.where(keep, new_logp - old_logp.detach(), 0.0)
    objective, clipped = bounded(log_ratio.exp(), advantage.detach(), clip_low, clip_high, dual_clip)
    return mean_loss(objective, clipped, log_ratio, weight, keep, denominator)


def sequence_loss(
    new_logp: Tensor,
    old_logp: Tensor,
    advantage: Tensor,
    mask: Tensor,
    weight: Tensor,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
    denominator: float | Tensor | None = None,
    dual_clip: float | None = None,
) -> tuple[Tensor, Metrics]:
    """Return GSPO's loss: as :func:`policy_loss`, with one ratio a sequence, the geometric mean over its tokens.

    So a sequence is clipped whole. Each token carries that ratio's value with the gradient of its own log-probability
    (GSPO-token), which for the one advantage of a sequence is GSPO's own gradient. The defaults of the clip are the
    paper's: a mean over tokens moves far less than a token. Source: arXiv 2507.18071.
    """
    keep = counted(new_logp, mask, advantage)
    token = torch.where(keep, new_logp - old_logp.detach(), 0.0)
    sequence = token.detach().sum(-1, keepdim=True) / keep.sum(-1, keepdim=True).clamp(min=1)
    log_ratio = torch.where(keep, sequence + token - token.detach(), 0.0)
    objective, clipped = bounded(log_ratio.exp(), advantage.detach(), clip_low, clip_high, dual_clip)
    return mean_loss(objective, clipped, log_ratio, weight, keep, denominator)


def clipped_weight_loss(
    new_logp: Tensor,
    old_logp: Tensor,
    advantage: Tensor,
    mask: Tensor,
    weight: Tensor,
    clip_low: float = 1.0,
    clip_high: float = 0.28,
    denominator: float | Tensor | None = None,
) -> tuple[Tensor, Metrics]:
    """Return CISPO's loss ``-weight * clip(ratio) * advantage * new_logp``, the clipped ratio without gradient.

    No token loses its gradient, also where PPO's clip would remove it; ``clip_share`` counts the clipped ratios.
    Source: MiniMax-M1, arXiv 2506.13585, which bounds the ratio above only: hence ``clip_low`` 1.
    """
    keep = counted(new_logp, mask, advantage)
    log_ratio = torch.where(keep, new_logp - old_logp, 0.0).detach()
    ratio = log_ratio.exp()
    bound = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    objective = bound * advantage.detach() * torch.where(keep, new_logp, 0.0)
    return mean_loss(objective, bound != ratio, log_ratio, weight, keep, denominator)


def bounded(
    ratio: Tensor, advantage: Tensor, clip_low: float, clip_high: float, dual_clip: float | None
) -> tuple[Tensor, Tensor]:
    """Return PPO's pessimistic objective of each token, and where a clip removed its gradient."""
    free = ratio * advantage
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantage
    objective, removed = torch.minimum(free, clipped), clipped < free
    if dual_clip is None:
        return objective, removed
    floor = dual_clip * advantage
    below = (advantage < 0) & (objective < floor)
    return torch.where(below, floor, objective), removed | below


def counted(new_logp: Tensor, mask: Tensor, advantage: Tensor) -> Tensor:
    """Return ``mask`` as booleans, in the shape that the loss of each token has."""
    return torch.broadcast_to(mask.bool(), torch.broadcast_shapes(new_logp.shape, mask.shape, advantage.shape))


def mean_loss(
    objective: Tensor,
    clipped: Tensor,
    log_ratio: Tensor,
    weight: Tensor,
    keep: Tensor,
    denominator: float | Tensor | None,
) -> tuple[Tensor, Metrics]:
    """Return the weighted loss and the metrics that all objectives share, divided as :func:`policy_loss` says."""
    weight = weight.detach()
    tokens = keep.sum()
    total = tokens.clamp(min=1) if denominator is None else denominator
    metrics = {
        "clip_share": masked_sum(clipped.float(), keep) / total,
        "ratio": masked_sum(log_ratio.detach().exp(), keep) / total,
        "weight": masked_sum(weight.float(), keep) / total,
        "tokens": tokens,
    }
    return masked_sum(-weight * objective, keep) / total, metrics


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
