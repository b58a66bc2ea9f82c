"""Tokens of a step with the largest gradients, and with the largest engine-trainer differences.

The gradient of the loss to a token's logits is ``c * (onehot - p)``, with L1 norm ``2 |c| (1 - exp(logp))``; ``c`` is
the gradient to ``logp`` that backward computes.
"""

import heapq
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor

from topics.trained import TrainedToken
from trainer.data.collate import MicroBatch

MAX_REAL = 1e12
"""Largest number of :data:`topics.values.Real`."""
KEPT_TOKENS = 5
"""Tokens kept of each kind."""


class TokenPart(NamedTuple):
    """A token, half the L1 norm of its gradient, and its ratio's distance from 1 (nats)."""

    gradient: float
    distance: float
    token: TrainedToken


class TopTokens:
    """Collects the top tokens of this rank's micro-batches during backward."""

    def __init__(self) -> None:
        self.gradient = 0.0
        self.kept: list[TokenPart] = []

    def note(
        self, batch: MicroBatch, logp_BA: Tensor, log_ratio_BA: Tensor, weight_BA: Tensor, slope_BA: Tensor
    ) -> None:
        """Note a micro-batch, (B, A) each; ``log_ratio`` is old over rollout, ``slope`` the gradient to ``logp``."""
        part_BA = torch.where(batch.mask_BA, slope_BA.abs() * (1 - logp_BA.exp()), 0.0).nan_to_num(0.0, 0.0, 0.0)
        distance_BA = torch.where(batch.corrected_BA, log_ratio_BA.abs(), 0.0).nan_to_num(0.0, 0.0, 0.0)
        self.gradient += part_BA.sum().item()
        positions = [top_positions(values_BA) for values_BA in (part_BA, distance_BA)]
        for row, column in dict.fromkeys(place for part in positions for place in part):
            numbers = [float(values_BA[row, column]) for values_BA in (logp_BA, log_ratio_BA, weight_BA)]
            if not batch.mask_BA[row, column] or not all(abs(number) <= MAX_REAL for number in numbers):
                continue
            trajectory_id, step = batch.places[row]
            logprob, log_ratio, weight = numbers
            token = TrainedToken(
                trajectory_id=trajectory_id,
                step=step,
                index=column,
                token=int(batch.answers_BA[row, column]),
                logprob=logprob,
                log_ratio=log_ratio,
                weight=weight,
                gradient_share=0.0,
            )
            self.kept.append(TokenPart(float(part_BA[row, column]), float(distance_BA[row, column]), token))
        self.kept = select_top(self.kept)


def top_positions(values_BA: Tensor) -> list[tuple[int, int]]:
    """Return row and column of the largest values."""
    width = values_BA.shape[1]
    flat = values_BA.flatten().topk(min(KEPT_TOKENS, values_BA.numel())).indices.tolist()
    return [(index // width, index % width) for index in flat]


def select_top(parts: Iterable[TokenPart]) -> list[TokenPart]:
    """Return the parts with the largest gradients, then those with the largest distances, without repeats."""
    known = list(parts)
    top = [
        *heapq.nlargest(KEPT_TOKENS, known, key=lambda part: part.gradient),
        *(part for part in heapq.nlargest(KEPT_TOKENS, known, key=lambda part: part.distance) if part.distance > 0),
    ]
    return list({id(part): part for part in top}.values())


def merge_parts(parts: Iterable[TokenPart], gradient: float) -> list[TrainedToken]:
    """Return the top tokens over all ranks, with their shares of the step's ``gradient``."""
    return [
        msgspec.structs.replace(token, gradient_share=min(1.0, part / gradient) if gradient > 0 else 0.0)
        for part, _, token in select_top(parts)
    ]
