"""Corrections of trainer against engine as pure functions of tensors, by the keys of ``trainer.correction``.

The engine sampled each token under the *rollout* policy, the trainer differentiates its loss at the *old* one. The
ratio of a token is ``old / rollout``; that of a sequence is the product over its tokens. A sequence is one answer, one
step of a trajectory. A masked token has weight 0 and still counts in the denominator of the loss, as IcePop's does.

Shapes: B sequences, A answer tokens. Tensors are (B, A). No weight has a gradient.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from dart_streams.config import Trainer
from trainer.objective import mask_values

TRUNCATION_MARGIN = 1e-3
"""Share by which a ratio exceeds the cap to count as truncated: ten times the float noise of equal weights."""


class Correction(NamedTuple):
    """Importance weight of each token, and where it differs from the plain one: the share ``truncated_share``."""

    weight_BA: Tensor
    altered_BA: Tensor


def truncate_ratios(log_ratio_BA: Tensor, mask_BA: Tensor, settings: Trainer) -> Correction:
    """Return each token's ratio, at most ``trainer.truncate.cap``.

    Source: truncated importance sampling, as in DART (arXiv 2509.23866).
    """
    ratio_BA, cap = log_ratio_BA.exp(), settings.truncate.cap
    return Correction(ratio_BA.clamp(max=cap), ratio_BA > cap * (1.0 + TRUNCATION_MARGIN))


def mask_tokens(log_ratio_BA: Tensor, mask_BA: Tensor, settings: Trainer) -> Correction:
    """Return each token's ratio, and 0 for a token whose ratio is out of the bounds of ``trainer.mask``.

    Source: IcePop's double-sided mask (Ring-1T, arXiv 2510.18855), bounds 0.5 and 5.
    """
    ratio_BA = log_ratio_BA.exp()
    kept_BA = (ratio_BA >= settings.mask.low) & (ratio_BA <= settings.mask.high)
    return Correction(torch.where(kept_BA, ratio_BA, 0.0), ~kept_BA)


def mask_by_geometric_mean(log_ratio_BA: Tensor, mask_BA: Tensor, settings: Trainer) -> Correction:
    """Return weight 1, and 0 for all tokens of a sequence whose geometric mean ratio is out of bounds.

    The mean does not depend on the length. Kept sequences have no importance weights. Source: geometric sequence
    masking (Geo-RS of "When Speed Kills Stability", part 3, Liu and Li et al. 2025); bounds as in SkyRL, 0.99 and 1.01.
    """
    mean_B1 = (sum_row(log_ratio_BA, mask_BA) / mask_BA.sum(-1, keepdim=True).clamp(min=1)).exp()
    bounds = settings.geometric_mask
    kept_BA = ((mean_B1 >= bounds.low) & (mean_B1 <= bounds.high)).expand_as(log_ratio_BA)
    return Correction(kept_BA.to(log_ratio_BA.dtype), ~kept_BA)


def mask_by_product(log_ratio_BA: Tensor, mask_BA: Tensor, settings: Trainer) -> Correction:
    """Return the ratio of its sequence for each token, and 0 where that is out of ``trainer.sequence_mask``.

    Source: masked sequence-level importance sampling (Seq-MIS of "When Speed Kills Stability", Liu and Li et al. 2025),
    which has no lower bound; bounds as in verl and SkyRL, 0.5 and 2.
    """
    ratio_B1 = sum_row(log_ratio_BA, mask_BA).exp()
    kept_B1 = (ratio_B1 >= settings.sequence_mask.low) & (ratio_B1 <= settings.sequence_mask.high)
    weight_B1 = torch.where(kept_B1, ratio_B1, 0.0)
    return Correction(weight_B1.expand_as(log_ratio_BA), ~kept_B1.expand_as(log_ratio_BA))


CORRECTIONS: Mapping[str, Callable[[Tensor, Tensor, Trainer], Correction]] = {
    "truncate": truncate_ratios,
    "mask": mask_tokens,
    "geometric_mask": mask_by_geometric_mean,
    "sequence_mask": mask_by_product,
    "none": lambda ratio_BA, *_: Correction(torch.ones_like(ratio_BA), torch.zeros_like(ratio_BA)),
}
"""Corrections by configured name; each takes log-ratios (nats), the mask of counted tokens, and its bounds."""


def importance_weights(old_BA: Tensor, rollout_BA: Tensor, mask_BA: Tensor, settings: Trainer) -> Correction:
    """Return the configured correction for log-probabilities of both policies."""
    return CORRECTIONS[settings.correction]((old_BA - rollout_BA).detach(), mask_BA, settings)


def sum_row(values_BA: Tensor, mask_BA: Tensor) -> Tensor:
    """Return the sum over each sequence's counted tokens, (B, 1)."""
    return mask_values(values_BA, mask_BA.bool()).sum(-1, keepdim=True)
