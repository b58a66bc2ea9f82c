"""Held-out measures: likelihood of the demonstrated answers, and whether greedy decoding gives their actions."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from dart_data.sft.batches import whole_episodes
from dart_data.sft.episodes import EpisodeEntry
from dart_data.sft.job import Measures
from dart_streams.config import Trainer
from trainer.data.collate import MicroBatch
from trainer.data.prefetch import GroupReader
from trainer.data.successes import sft_group
from trainer.learning import step
from trainer.learning.learner import Learner, never_stop
from trainer.learning.model import Scorer
from trainer.objective import masked_sum

TRAJECTORIES = 8
"""Trajectories read at once."""


def measure(
    learner: Learner, reader: GroupReader, episodes: Sequence[EpisodeEntry], settings: Trainer
) -> Measures | None:
    """Return the measures over all answers of trajectories; None without any. Collective.

    An action is equal if greedy decoding gives exactly its tokens; a thought before it is the demonstrated one.
    """
    lengths = {entry.trajectory_id: entry.action_tokens for entry in episodes}
    own = [0.0] * 4
    for start in range(0, len(episodes), TRAJECTORIES):
        batch = whole_episodes(episodes[start : start + TRAJECTORIES])
        group = reader.read(sft_group(f"heldout-{start}", batch))
        pieces = learner.collator.pieces([group], settings.micro_batch, settings.micro_batch_tokens)
        batches = learner.collator.batches([group], pieces, int(learner.ranks.largest(len(pieces))))
        with torch.no_grad(), greedy_choices(learner.scorer) as choices:
            for each in step.unless_stopped(batches, learner.ranks, never_stop):
                choices.clear()
                logp_BA, _ = learner.scorer(each)
                own[0] -= masked_sum(logp_BA, each.mask_BA).item()
                own[1] += count_equal(each, chosen_tokens(learner.scorer, each, choices), lengths)
                own[2] += each.mask_BA.any(1).sum().item()
                own[3] += each.mask_BA.sum().item()
    nll, equal, answers, tokens = learner.ranks.total(own)
    if not tokens:
        return None
    return Measures(nll=nll / tokens, equal_actions=equal / answers, answers=int(answers), tokens=int(tokens))


@contextlib.contextmanager
def greedy_choices(scorer: Scorer) -> Iterator[list[Tensor]]:
    """Yield a list that gets the most likely allowed token of each row of logits that the head computes."""
    choices: list[Tensor] = []

    def note(_module: nn.Module, _inputs: object, logits: Tensor) -> None:
        choices.append(logits.masked_fill(scorer.forbidden_V, -torch.inf).argmax(-1).flatten())

    handle = scorer.policy.get_output_embeddings().register_forward_hook(note)
    try:
        yield choices
    finally:
        handle.remove()


def chosen_tokens(scorer: Scorer, batch: MicroBatch, choices: Sequence[Tensor]) -> Tensor:
    """Return the most likely token (N,) at each place of the batch's answers."""
    chosen = torch.cat(list(choices))
    # Chunks of the head are those of the answers' tokens already.
    return chosen if batch.logits_N is None or scorer.head_tokens else chosen[batch.logits_N]


def count_equal(batch: MicroBatch, choices_N: Tensor, lengths: Mapping[str, Sequence[int]]) -> int:
    """Return the number of answers whose action's tokens, at the answer's end, are all the most likely ones."""
    present_BA = batch.present_BA
    chosen_BA = torch.zeros_like(batch.answers_BA).masked_scatter(present_BA, choices_N)
    equal = 0
    for row, (trajectory_id, number) in enumerate(batch.places):
        if not batch.mask_BA[row].any():
            continue
        end = int(present_BA[row].sum())
        own = slice(end - lengths[trajectory_id][number], end)
        equal += bool((chosen_BA[row, own] == batch.answers_BA[row, own]).all())
    return equal
