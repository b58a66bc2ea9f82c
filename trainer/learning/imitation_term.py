"""Self-imitation beside each batch: the term that a step's loss has for it.

The term is ``weight`` times the mean negative log-likelihood of the answers of own past successes, drawn uniformly.
Source: self-imitation learning (arXiv 1806.05635), whose policy loss is ``-log pi(a|s) * max(R - V(s), 0)`` over past
transitions. What differs: there is no value function, so only successes are imitated and all weigh alike; they are
drawn uniformly from the newest, not by priority; and single steps may be left out (``curation.entropy``).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from dart_streams.config import Trainer
from trainer.data.collate import Collator, MicroBatch
from trainer.data.samples import ReadyGroup
from trainer.learning import step
from trainer.objective import masked_sum
from trainer.ranks import Ranks


def negative_log_likelihood(logp_BA: Tensor, mask_BA: Tensor, tokens: float | Tensor) -> Tensor:
    """Return the negative log-likelihood of answers (nats) over ``tokens``, the count of all micro-batches and ranks.

    ``logp_BA`` are log-probabilities of B answers of up to A tokens, ``mask_BA`` is true for those that count.
    """
    return -masked_sum(logp_BA, mask_BA.bool()) / tokens


@dataclass
class ImitationTerm:
    """What the loss has for successes to imitate, on one rank; ``tokens`` and ``sequences`` are of all ranks.

    ``nll`` is this rank's part of the mean (nats a token), once :meth:`accumulate` has seen it.
    """

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
        """Return the term of groups to imitate; None if they have nothing to train on. Collective."""
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
        """Add the term's gradient to the parameters. Raises :class:`step.Stopped` as :func:`step.accumulate` does."""
        for batch in step.unless_stopped(self.batches, self.ranks, should_stop):
            logp_BA, _ = scorer(batch)
            nll = negative_log_likelihood(logp_BA, batch.mask_BA, self.tokens)
            # FSDP averages gradients over the ranks; the loss is a sum over them.
            (self.weight * nll * self.ranks.count).backward()
            self.nll += nll.item()

    def metrics(self, policy_tokens: float) -> dict[str, float]:
        """Return the term's metrics beside a batch of ``policy_tokens``; collective."""
        return {
            "imitation_nll": self.ranks.total([self.nll])[0],
            "imitation_weight": self.weight,
            "imitation_sequences": self.sequences,
            "imitation_share": self.tokens / (self.tokens + policy_tokens),
        }


class SftUpdate(NamedTuple):
    """An update on successes alone: their mean negative log-likelihood before it (nats a token), and its gradient."""

    nll: float
    tokens: float
    grad_norm: float


def sft_metrics(updates: Sequence[SftUpdate], policy_tokens: float) -> dict[str, float]:
    """Return the metrics of a supervised phase that ends a step on ``policy_tokens``: of the updates that were made."""
    made = [update for update in updates if math.isfinite(update.grad_norm)]
    tokens = sum(update.tokens for update in made)
    if not tokens:
        return {}
    return {
        "sft_updates": float(len(made)),
        "sft_nll": sum(update.nll * update.tokens for update in made) / tokens,
        "sft_share": tokens / (tokens + policy_tokens),
    }
