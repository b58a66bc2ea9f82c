"""rollout-orders: dispatch orders one rollout of a task."""

import msgspec

from topics.topic import Topic
from topics.values import Purpose, Sampling


class RolloutOrder(msgspec.Struct, frozen=True, kw_only=True):
    """An order for one rollout: sample ``sample`` of ``group_size`` of a group, attempt ``attempt`` (from 0).

    ``max_steps`` bounds the episode; ``after_version`` is the newest weight version dispatch knew when it ordered.
    """

    order_id: str
    group_id: str
    group_size: int
    sample: int
    attempt: int
    task_id: str
    max_steps: int
    purpose: Purpose
    sampling: Sampling
    after_version: int


TOPIC = Topic(name="rollout-orders", event=RolloutOrder, key="order_id", partitions=4)
