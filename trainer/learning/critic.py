"""Critic of a recipe: a linear value head on the policy's last hidden states, with its own optimizer.

The states are detached, so values never change the policy. The head is whole and equal on every rank, on the CPU. It
begins at zero.

Shapes: B sequences, A answer tokens, N answer tokens of several sequences in order, D hidden state.
"""

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.data.collate import MicroBatch
from trainer.hooks import Chain, Critic, TrainingRules
from trainer.learning.model import Scorer
from trainer.ranks import Ranks

LEAST_VARIANCE = 1e-3
"""Variance of value targets below which there is nothing to explain."""


class ScoredPass(NamedTuple):
    """A pass without gradient: log-probabilities (B, A), summed entropy (nats), and the state before each token."""

    logp_BA: Tensor
    entropy: float
    states_ND: Tensor


class Assessment(NamedTuple):
    """A step's micro-batches with an advantage for each token (B, A), and what the critic learns from them.

    ``entropy`` is the sum over this rank's N tokens (nats).
    """

    batches: list[MicroBatch]
    states_ND: Tensor
    values_N: Tensor
    targets_N: Tensor
    entropy: float


class ValueHead:
    """The head on states of ``width``, as the ``rules`` of a recipe ask."""

    def __init__(self, width: int, rules: Critic, ranks: Ranks) -> None:
        self.rules = rules
        self.ranks = ranks
        self.layer = nn.Linear(width, 1)
        for parameter in self.layer.parameters():
            nn.init.zeros_(parameter)
        rate = rules.learning_rate / width
        self.optimizer = torch.optim.AdamW(self.layer.parameters(), lr=rate, weight_decay=0.0)

    def assess(self, batches: Sequence[MicroBatch], scored: Sequence[ScoredPass]) -> Assessment:
        """Return this rank's micro-batches, scored with the present weights, with the credit of each token."""
        states_ND = torch.cat([part.states_ND for part in scored])
        with torch.no_grad():
            values_N = self.layer(states_ND).squeeze(-1)
        advantages_N, targets_N = torch.zeros_like(values_N), torch.zeros_like(values_N)
        for places_T, reward in chains_of(batches):
            credit = self.rules.credit(Chain(values_N[places_T].tolist(), reward))
            advantages_N[places_T], targets_N[places_T] = map(torch.tensor, credit)
        parts = advantages_N.split([len(part.states_ND) for part in scored])
        credited = [
            dataclasses.replace(batch, advantage_B1=torch.zeros(batch.mask_BA.shape).masked_scatter(batch.mask_BA, own))
            for batch, own in zip(batches, parts, strict=True)
        ]
        return Assessment(credited, states_ND, values_N, targets_N, sum(part.entropy for part in scored))

    def fit(self, assessed: Assessment) -> dict[str, float]:
        """Make the updates of a step; return the metrics of the values before them. Collective."""
        targets_N, error_N = assessed.targets_N.double(), (assessed.values_N - assessed.targets_N).double()
        own = [len(error_N), *(float(value.sum()) for value in (error_N, error_N**2, targets_N, targets_N**2))]
        tokens, error, squared_error, target, squared_target = self.ranks.total(own)
        for _ in range(self.rules.updates):
            own_error_N = self.layer(assessed.states_ND).squeeze(-1) - assessed.targets_N
            (own_error_N.square().sum() / tokens).backward()
            if self.ranks.count > 1:
                for parameter in self.layer.parameters():
                    dist.all_reduce(parameter.grad)
            self.optimizer.step()
            self.optimizer.zero_grad()
        unexplained = squared_error / tokens - (error / tokens) ** 2
        variance = squared_target / tokens - (target / tokens) ** 2
        explained = {"explained_variance": 1.0 - unexplained / variance} if variance > LEAST_VARIANCE else {}
        return {"value_loss": squared_error / tokens, **explained}


def build(scorer: Scorer, rules: TrainingRules, ranks: Ranks) -> ValueHead | None:
    """Return the value head that bound ``rules`` ask for; None without one."""
    if rules.critic is None:
        return None
    return ValueHead(scorer.policy.config.get_text_config().hidden_size, rules.critic(), ranks)


@torch.no_grad()
def score(scorer: Scorer, batch: MicroBatch) -> ScoredPass:
    """Score a micro-batch on the model's device; the states are those that predict each token."""
    seen: list[Tensor] = []
    hook = scorer.policy.get_output_embeddings().register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    try:
        logp_BA, entropy_BA = scorer(batch)
    finally:
        hook.remove()
    states_ND = torch.cat([states_XD.flatten(0, -2) for states_XD in seen])
    if batch.logits_N is not None and not scorer.head_tokens:  # Chunks are those of the answers' tokens already.
        states_ND = states_ND[batch.logits_N]
    used_N = batch.mask_BA[batch.present_BA]
    return ScoredPass(logp_BA, float(entropy_BA[batch.mask_BA].sum()), states_ND[used_N].float().cpu())


def chains_of(batches: Sequence[MicroBatch]) -> Iterator[tuple[Tensor, float]]:
    """Yield each trajectory's places (T,) among all tokens that count, in order of its steps, and its reward."""
    samples = [
        (*place, size, reward)
        for batch in batches
        for place, size, reward in zip(
            batch.places, batch.mask_BA.sum(-1).tolist(), batch.advantage_B1[:, 0].tolist(), strict=True
        )
    ]
    ends = itertools.accumulate(size for _, _, size, _ in samples)
    steps: defaultdict[str, list[tuple[int, int, int, float]]] = defaultdict(list)
    for (trajectory, step, size, reward), end in zip(samples, ends, strict=True):
        if size:
            steps[trajectory].append((step, end - size, end, reward))
    for own in steps.values():
        own.sort()
        yield torch.cat([torch.arange(start, end) for _, start, end, _ in own]), own[-1][-1]
