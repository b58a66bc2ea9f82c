"""actions: replies of the policy to action requests."""

import msgspec

from topics.topic import HOUR_MS, Topic
from topics.values import Digest, Milliseconds, Name, Prose, Real, Steps, Token, VersionSpan


class ActionResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to one request: the generated text and, per token, ids, log-probabilities and entropies.

    ``error`` is null, or the reason of a failed generation, whose token lists are empty. ``prompt_sha`` is the digest
    of the rendered prompt; ``queue_ms`` and ``generate_ms`` are times in the rollout worker.

    A person's action (``RolloutOrder.lease``) has no tokens, and is sent to every partition. Its ``text`` is canonical,
    in pixels of the screen, and ``generate_ms`` is the time to decide. With ``alive`` the record is a sign of life
    without an action; the field is omitted otherwise. So it is with ``gives_back``, by which a person who has taken a
    rollout over leaves this step, and those after it, to the policy.
    """

    request_id: Name
    trajectory_id: Name
    step: Steps
    text: Prose
    tokens: list[Token]
    logprobs: list[Real]
    entropies: list[Real]
    versions: list[VersionSpan]
    prompt_tokens: Token
    prompt_sha: Digest
    worker_id: Name
    queue_ms: Milliseconds
    generate_ms: Milliseconds
    error: Prose | None = None
    alive: bool | msgspec.UnsetType = msgspec.UNSET
    gives_back: bool | msgspec.UnsetType = msgspec.UNSET


TOPIC = Topic(
    name="actions", event=ActionResponse, key="request_id", partitions=4, shared=True, shortest_ms=HOUR_MS // 4
)
