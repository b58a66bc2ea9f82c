"""C3PO of Ring-lite (arXiv 2506.14731): each optimizer step has the same number of answer tokens."""

from collections.abc import Sequence

import msgspec

from dart_streams import stateless_random
from dart_streams.curation.hooks import Own
from trainer.data.batch_builder import tokens_of
from trainer.data.samples import ReadyGroup, TrainingSample
from trainer.hooks import TrainingRules


def is_full(own: Own, tokens: float) -> bool:
    """Return whether a batch has the tokens of a step."""
    return tokens >= own.settings.tokens_per_step


def cut(own: Own, groups: Sequence[ReadyGroup], tokens: float) -> list[ReadyGroup]:
    """Return this rank's groups, cut to its share of the budget."""
    budget = own.settings.tokens_per_step
    return cut_to_budget(groups, int(tokens_of(groups) * budget / tokens)) if tokens > budget else list(groups)


def cut_to_budget(groups: Sequence[ReadyGroup], tokens: int) -> list[ReadyGroup]:
    """Return groups cut to ``tokens`` answer tokens, give or take less than one answer.

    Steps are dropped by a hash of their ids. The answer that crosses the budget is kept with the probability with which
    it fits; otherwise long answers, which cross more often, would lose more.
    """
    kept: set[int] = set()

    def key(item: TrainingSample) -> tuple[str, str, int]:
        return item.group_id, item.trajectory_id, item.step

    samples = [item for group in groups for item in group.samples]
    for item in sorted(samples, key=lambda item: stateless_random.number("left out", *key(item))):
        if tokens < len(item.answer):
            if stateless_random.share("boundary", *key(item)) * len(item.answer) < tokens:
                kept.add(id(item))
            break
        tokens -= len(item.answer)
        kept.add(id(item))
    return [
        msgspec.structs.replace(group, samples=[item for item in group.samples if id(item) in kept]) for group in groups
    ]


RULES = TrainingRules(is_full=is_full, cut=cut)
