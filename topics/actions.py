"""actions: what the policy answered."""

import msgspec

from topics.topic import HOUR_MS, Topic
from topics.values import VersionSpan


class ActionResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to one request: the generated text and, a token each, ids, log-probabilities and entropies.

    ``error`` is null, or why no action could be generated (then the token lists are empty). ``prompt_sha`` names the
    rendered prompt; ``queue_ms`` and ``generate_ms`` say where the time went in the rollout worker.
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
