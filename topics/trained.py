"""trained: the groups of an optimizer step and its metrics, published by the trainer."""

import msgspec

from topics.topic import Topic
from topics.values import EpochMs, Measured, Name, Real, Share, Steps, Token, Version

MISMATCH_ALARM_NATS = 0.05
"""A step's ``same_version_mismatch`` above this is an alarm (nats a token): ten times its usual value."""


class TrainedToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token of action ``step`` of a trajectory, the ``index``-th of its answer, as the step trained on it.

    ``logprob`` is the trainer's (nats); ``log_ratio`` that less the engine's at the start of the step, before any bound
    (0 where the engine's does not count); ``weight`` its importance weight as applied. ``gradient_share`` is its part
    of the step's gradient to the logits, in L1.
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
    """Step ``train_step`` of trainer ``epoch`` took these groups and made weight version ``version``.

    ``imitated`` are the trajectories of earlier groups that it imitated beside them, ``sft_updates`` those of each
    update of a supervised phase at its end; both are omitted where there are none. ``metrics`` are those of the step,
    by the names in :mod:`topics.training_metrics`. ``top_tokens`` are those of the largest part in its gradient, then
    those whose importance ratio was farthest from 1. The same step may be published again after a restart.
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


TOPIC = Topic(name="trained", event=TrainedStep, key="train_step", retention_ms=None)
