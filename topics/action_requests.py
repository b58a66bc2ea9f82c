"""action-requests: requests of environment workers for the next action of a trajectory."""

import msgspec

from topics.topic import HOUR_MS, Topic
from topics.values import EpochMs, MessagePart, Name, Partition, Sampling, Steps, Token


class ReplayedRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a replayed request brings of the run, in place of the worker's memory and its sampling.

    ``request_id`` is the run's: a replayed request has an id of its own, since a worker answers an id once. ``before``
    has the tokens of the trajectory's earlier answers, as prompts show them. With ``tokens`` the reply has these, with
    their log-probabilities and entropies under the served weights; without them it is generated.
    """

    request_id: Name
    before: list[list[Token]] = []
    tokens: list[Token] = []


class ActionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The whole prompt of one step, so that rollout workers keep no state.

    The reply goes to partition ``reply_partition`` of ``actions``. The host gives up at ``deadline_ms`` by its own
    clock (epoch ms); other hosts may use only the difference to the time of the record. ``recorded`` is omitted, but in
    a replay of requests.
    """

    request_id: Name
    trajectory_id: Name
    step: Steps
    turns: list[MessagePart]
    sampling: Sampling
    reply_partition: Partition
    deadline_ms: EpochMs
    recorded: ReplayedRequest | msgspec.UnsetType = msgspec.UNSET


TOPIC = Topic(
    name="action-requests",
    event=ActionRequest,
    key="trajectory_id",
    partitions=4,
    shared=True,
    shortest_ms=HOUR_MS // 4,
)
