"""trained: the groups of an optimiser step and its metrics, published by the trainer."""

import msgspec

from topics.topic import Topic
from topics.values import EpochMs, Measured, Name, Version


class TrainedStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Step ``train_step`` of trainer ``epoch`` took these groups and made weight version ``version``.

    ``imitated`` are the trajectories of earlier groups that it imitated beside them, ``sft_updates`` those of each
    update of a supervised phase at its end; both are omitted where there are none. ``metrics`` are those of the step
    (loss, entropy, …). The same step may be published again after a restart.
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


TOPIC = Topic(name="trained", event=TrainedStep, key="train_step", retention_ms=None)
