"""trained: the groups of an optimiser step and its metrics, published by the trainer."""

import msgspec

from topics.topic import Topic


class TrainedStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Step ``train_step`` of trainer ``epoch`` took these groups and made weight version ``version``.

    ``imitated`` are the trajectories of earlier groups that it imitated beside them, ``sft_updates`` those of each
    update of a supervised phase at its end; both are omitted where there are none. ``metrics`` are those of the step
    (loss, entropy, …). The same step may be published again after a restart.
    """

    train_step: int
    version: int
    epoch: int
    group_ids: list[str]
    trajectory_ids: list[str]
    metrics: dict[str, float]
    at_ms: int
    imitated: list[str] = []
    sft_updates: list[list[str]] = []


TOPIC = Topic(name="trained", event=TrainedStep, key="train_step", retention_ms=None)
