"""action-requests: an environment worker requests the next action of a trajectory from the policy."""

import msgspec

from topics.topic import HOUR_MS, Topic
from topics.values import MessagePart, Sampling


class ActionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The whole prompt of one step, so that rollout workers keep no state.

    The reply goes to partition ``reply_partition`` of ``actions``. A worker drops the request after ``deadline_ms``
    (epoch milliseconds).
    """

    request_id: str
    trajectory_id: str
    step: int
    turns: list[MessagePart]
    sampling: Sampling
    reply_partition: int
    deadline_ms: int


TOPIC = Topic(name="action-requests", event=ActionRequest, key="trajectory_id", partitions=4, retention_ms=HOUR_MS // 4)
