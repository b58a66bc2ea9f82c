"""trained: the groups of an optimizer step and its metrics, published by the trainer."""

import msgspec

from topics.topic import Topic
from topics.values import BlobRef, EpochMs, Measured, Name, Real, Share, Steps, Token, Version

MISMATCH_ALARM_NATS = 0.05
"""A step's ``same_version_mismatch`` above this is an alarm (nats a token): ten times its usual value."""


class TrainedToken(msgspec.Struct, frozen=True, kw_only=True):
    """Token ``index`` of the answer of action ``step`` of a trajectory, as the optimizer step trained on it.

    ``logprob`` is the trainer's (nats). ``log_ratio`` is the trainer's less the engine's at the start of the step,
    before any bound (0 where the engine's does not count). ``weight`` is the applied importance weight.
    ``gradient_share`` is the token's L1 share of the step's gradient to the logits.
    """

    trajectory_id: Name
    step: Steps
    index: Token
    token: Token
    logprob: Real
    log_ratio: Real
    weight: Real
    gradient_share: Share


class TrainedStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Step ``train_step`` of trainer ``epoch`` trained on these groups and made weight version ``version``.

    ``imitated`` are imitated trajectories of earlier groups; ``sft_updates`` are the trajectories of each update of a
    supervised phase. ``replayed`` are trajectories of earlier groups that were trained with the batch. All three are
    omitted if empty, and so is ``feedback``: the groups of feedback that were imitated, new and earlier ones.
    ``metrics`` have the names in :mod:`topics.training_metrics`.
    ``scores`` refers to the numbers of answer tokens that a recipe got from outside the trainer, as JSON in the store;
    omitted without any. ``top_tokens`` are those with the largest gradient share, then those with importance ratios
    farthest from 1. A step may be published again after a restart.
    """

    train_step: Version
    version: Version
    epoch: Version
    group_ids: list[Name]
    trajectory_ids: list[Name]
    metrics: dict[Name, Measured]
    at_ms: EpochMs
    imitated: list[Name] = []
    sft_updates: list[list[Name]] = []
    top_tokens: list[TrainedToken] = []
    replayed: list[Name] = []
    scores: BlobRef | None = None
    feedback: list[Name] = []

    @property
    def past(self) -> list[Name]:
        """All trajectories of earlier groups, imitated or replayed."""
        return [*self.imitated, *(name for update in self.sft_updates for name in update), *self.replayed]


TOPIC = Topic(name="trained", event=TrainedStep, key="train_step", shortest_ms=None)
