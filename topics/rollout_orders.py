"""rollout-orders: orders of dispatch, each for one rollout of a task."""

import msgspec

from topics.topic import Topic
from topics.values import Attempt, GroupSize, Name, Purpose, Sampling, Steps, Version


class RolloutOrder(msgspec.Struct, frozen=True, kw_only=True):
    """An order for one rollout: sample ``sample`` of ``group_size`` of a group, attempt ``attempt`` (from 0).

    ``max_steps`` bounds the episode; ``after_version`` is the newest weight version that dispatch knew.
    """

    order_id: Name
    group_id: Name
    group_size: GroupSize
    sample: GroupSize
    attempt: Attempt
    task_id: Name
    max_steps: Steps
    purpose: Purpose
    sampling: Sampling
    after_version: Version


TOPIC = Topic(name="rollout-orders", event=RolloutOrder, key="order_id", partitions=4)
