"""A constant number of tokens a step, however long answers are: when a batch is full, and what it leaves out. Pure.

With a constant number of groups, a step on long trajectories has many times the tokens of one on short ones, and the
size of the gradient's noise goes up and down with it. Source: C3PO (Ring-lite, arXiv 2506.14731).
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from dart_streams import stateless_random
from dart_streams.config import Config
from dart_streams.curation.staleness import capacity
from trainer.data.samples import ReadyGroup, TrainingSample


class TokenBudget(NamedTuple):
    """A step takes groups until they have ``tokens`` answer tokens, or until there are ``groups`` of them.

    Dispatch opens at most ``groups`` groups before the trainer has taken some: waiting for more would not end.
    """

    tokens: int
    groups: int

    @classmethod
    def of(cls, config: Config) -> "TokenBudget | None":
        """Return the budget of a deployment, None if its steps are counted in groups."""
        tokens = config.trainer.c3po.tokens_per_step
        if not tokens:
            return None
        return cls(tokens, capacity(config.trainer.groups_per_step, config.curation.max_staleness))

    def is_met(self, tokens: float, groups: int) -> bool:
        """Return whether a batch with ``tokens`` (of all ranks) in ``groups`` is full."""
        return tokens >= self.tokens or groups >= self.groups


def tokens_of(groups: Sequence[ReadyGroup]) -> int:
    """Return the answer tokens of groups, as one rank reads them."""
    return sum(len(item.answer) for group in groups for item in group.samples)


def fitted(groups: Sequence[ReadyGroup], tokens: int) -> list[ReadyGroup]:
    """Return groups with at most ``tokens`` answer tokens, less than one answer below that.

    Steps are dropped by a hash of their ids, so that neither late groups nor long answers lose more than others.
    """
    kept: set[int] = set()
    for item in sorted((item for group in groups for item in group.samples), key=draw):
        tokens -= len(item.answer)
        if tokens < 0:
            break
        kept.add(id(item))
    return [
        msgspec.structs.replace(group, samples=[item for item in group.samples if id(item) in kept]) for group in groups
    ]


def draw(item: TrainingSample) -> int:
    """Return a step's stateless random number; those with the largest are dropped first."""
    return stateless_random.number("left out", item.group_id, item.trajectory_id, item.step)
