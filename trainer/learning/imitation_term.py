"""Self-imitation loss: ``weight`` times the mean negative log-likelihood of own past successes.

Source: self-imitation learning (arXiv 1806.05635), ``-log pi(a|s) * max(R - V(s), 0)``. Differences: no value function,
so successes weigh alike; a uniform draw from the newest instead of priorities; steps may be left out
(``curation.entropy``).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn

from dart_streams.config import Trainer
from trainer.data.collate import Collator, MicroBatch
from trainer.data.samples import ReadyGroup
from trainer.learning import step
from trainer.objective import masked_sum
from trainer.ranks import Ranks


@dataclass
class ImitationTerm:
    """Imitation term of a step; ``tokens`` and ``sequences`` are over all ranks, ``nll`` is this rank's part (nats)."""

    weight: float
    ranks: Ranks
    batches: Iterable[MicroBatch]
    tokens: float
    sequences: float
    nll: float = 0.0

    @classmethod
    def of(
        cls, groups: Sequence[ReadyGroup], weight: float, settings: Trainer, collator: Collator, ranks: Ranks
    ) -> "ImitationTerm | None":
        """Return the term of groups; None if they have no tokens. Collective."""
        if not groups:
            return None
        samples = [item for group in groups for item in group.samples]
        tokens, sequences = ranks.total([sum(len(item.answer) for item in samples), len(samples)])
        if not tokens:
            return None
        pieces = collator.pieces(groups, settings.micro_batch, settings.micro_batch_tokens)
        batches = collator.batches(groups, pieces, int(ranks.largest(len(pieces))))
        return cls(weight, ranks, batches, tokens, sequences)

    def accumulate(self, scorer: nn.Module, should_stop: Callable[[], bool]) -> None:
        """Add the term's gradient to the parameters; raise :class:`step.Stopped` as :func:`step.accumulate` does."""
        for batch in step.unless_stopped(self.batches, self.ranks, should_stop):
            logp_BA, _ = scorer(batch)
            nll = -masked_sum(logp_BA, batch.mask_BA) / self.tokens
            # FSDP averages gradients over the ranks; the loss is a sum over them.
            (self.weight * nll * self.ranks.count).backward()
            self.nll += nll.item()

    def metrics(self, policy_tokens: float) -> dict[str, float]:
        """Return the term's metrics beside a batch of ``policy_tokens``. Collective."""
        return {
            "imitation_nll": self.ranks.total([self.nll])[0],
            "imitation_weight": self.weight,
            "imitation_sequences": self.sequences,
            "imitation_share": self.tokens / (self.tokens + policy_tokens),
        }


class SftUpdate(NamedTuple):
    """A supervised update: mean negative log-likelihood before it (nats a token), tokens, gradient norm."""

    nll: float
    tokens: float
    grad_norm: float


def sft_metrics(
    updates: Sequence[SftUpdate], policy_tokens: float, entropy_before: float, entropy_after: float
) -> dict[str, float]:
    """Return the metrics of a supervised phase after a step on ``policy_tokens``, of its finite updates.

    The entropies (nats a token) are of the policy on the step's batch, before and after the phase.
    """
    finite = [update for update in updates if math.isfinite(update.grad_norm)]
    tokens = sum(update.tokens for update in finite)
    if not tokens:
        return {}
    return {
        "sft_updates": float(len(finite)),
        "sft_nll": sum(update.nll * update.tokens for update in finite) / tokens,
        "sft_share": tokens / (tokens + policy_tokens),
        "sft_entropy_before": entropy_before,
        "sft_entropy_after": entropy_after,
    }
