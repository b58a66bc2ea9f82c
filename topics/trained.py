"""trained: the groups of an optimiser step and its metrics, published by the trainer."""

import msgspec

from topics.topic import Topic


class TrainedStep(msgspec.Struct, frozen=True, kw_only=True):
    """Step ``train_step`` of trainer ``epoch`` took these groups and made weight version ``version``.

    ``metrics`` are those of the step (loss, entropy, …). The same step may be published again after a restart.
    """

    train_step: int
    version: int
    epoch: int
    group_ids: list[str]
    trajectory_ids: list[str]
    metrics: dict[str, float]
    at_ms: int


TOPIC = Topic(name="trained", event=TrainedStep, key="train_step", retention_ms=None)
