"""actions: the policy's reply to an action request."""

import msgspec

from topics.topic import HOUR_MS, Topic
from topics.values import VersionSpan


class ActionResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to one request: the generated text and, per token, ids, log-probabilities and entropies.

    ``error`` is null, or the reason why no action was generated (then the token lists are empty). ``prompt_sha`` is the
    digest of the rendered prompt; ``queue_ms`` and ``generate_ms`` are times spent in the rollout worker.
    """

    request_id: str
    trajectory_id: str
    step: int
    text: str
    tokens: list[int]
    logprobs: list[float]
    entropies: list[float]
    versions: list[VersionSpan]
    prompt_tokens: int
    prompt_sha: str
    worker_id: str
    queue_ms: float
    generate_ms: float
    error: str | None = None


TOPIC = Topic(name="actions", event=ActionResponse, key="request_id", partitions=4, retention_ms=HOUR_MS // 4)
