"""The few tokens of a step that moved the weights most, and those on which engine and trainer differed most.

A token's part in the gradient is measured where the policy meets its logits: with log-probability ``logp`` the gradient
of the loss to the token's logits is ``c * (onehot - p)``, whose L1 norm is ``2 |c| (1 - exp(logp))``, where ``c`` is
the gradient to ``logp`` as backward computed it: weight, advantage, ratio, clip and KL are all in it.
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
"""The largest number of :data:`topics.values.Real`."""
KEPT_TOKENS = 5
"""Tokens kept of each kind: by their part in the gradient, and by the distance of their importance ratio from 1."""


class TokenPart(NamedTuple):
    """A token with its part in the gradient (L1, a half of it) and its importance ratio's distance from 1, in nats."""

    gradient: float
    distance: float
    token: TrainedToken


class TopTokens:
    """Collects the tokens of this rank's micro-batches as backward reaches them."""

    def __init__(self) -> None:
        self.gradient = 0.0
        self.kept: list[TokenPart] = []

    def note(
        self, batch: MicroBatch, logp_BA: Tensor, log_ratio_BA: Tensor, weight_BA: Tensor, slope_BA: Tensor
    ) -> None:
        """Note a micro-batch: ``log_ratio`` is old over rollout, ``slope`` the gradient of the loss to ``logp``.

        What no record can have is left out: what is not finite, or beyond the bounds of :class:`TrainedToken`.
        """
        part_BA = torch.where(batch.mask_BA, slope_BA.abs() * (1 - logp_BA.exp()), 0.0).nan_to_num(0.0, 0.0, 0.0)
        distance_BA = torch.where(batch.corrected_BA, log_ratio_BA.abs(), 0.0).nan_to_num(0.0, 0.0, 0.0)
        self.gradient += part_BA.sum().item()
        found = [top_positions(values_BA) for values_BA in (part_BA, distance_BA)]
        for row, column in dict.fromkeys(place for part in found for place in part):
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
    """Return where the largest values are, row and column."""
    width = values_BA.shape[1]
    flat = values_BA.flatten().topk(min(KEPT_TOKENS, values_BA.numel())).indices.tolist()
    return [(index // width, index % width) for index in flat]


def select_top(parts: Iterable[TokenPart]) -> list[TokenPart]:
    """Return those of the largest part in the gradient, then those of the largest distance, each once."""
    known = list(parts)
    top = [
        *heapq.nlargest(KEPT_TOKENS, known, key=lambda one: one.gradient),
        *(one for one in heapq.nlargest(KEPT_TOKENS, known, key=lambda one: one.distance) if one.distance > 0),
    ]
    return list({id(one): one for one in top}.values())


def merge_parts(parts: Iterable[TokenPart], gradient: float) -> list[TrainedToken]:
    """Return the tokens of a step, of all its ranks, with their shares of its whole ``gradient``."""
    return [
        msgspec.structs.replace(token, gradient_share=min(1.0, part / gradient) if gradient > 0 else 0.0)
        for part, _, token in select_top(parts)
    ]
