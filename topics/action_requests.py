"""action-requests: requests of environment workers for the next action of a trajectory."""

import msgspec

from topics.topic import HOUR_MS, Topic
from topics.values import EpochMs, MessagePart, Name, Partition, Sampling, Steps


class ActionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The whole prompt of one step, so that rollout workers keep no state.

    The reply goes to partition ``reply_partition`` of ``actions``. The host gives up at ``deadline_ms`` by its own
    clock (epoch ms); other hosts may use only the difference to the time of the record.
    """

    request_id: Name
    trajectory_id: Name
    step: Steps
    turns: list[MessagePart]
    sampling: Sampling
    reply_partition: Partition
    deadline_ms: EpochMs


TOPIC = Topic(
    name="action-requests",
    event=ActionRequest,
    key="trajectory_id",
    partitions=4,
    shared=True,
    retention_ms=HOUR_MS // 4,
    shortest_ms=HOUR_MS // 4,
)
