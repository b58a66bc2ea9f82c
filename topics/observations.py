"""observations: the screen after each action of a trajectory, with that action. These records are the trajectory."""

import msgspec

from topics.rollout_orders import RolloutOrder
from topics.topic import Topic
from topics.values import (
    BlobRef,
    Digest,
    EpochMs,
    Milliseconds,
    Name,
    OutcomeKind,
    Prose,
    Real,
    Reward,
    Steps,
    Token,
    VersionSpan,
)


class ExecutedAction(msgspec.Struct, frozen=True, kw_only=True):
    """The action that led to an observation, as generated and as executed.

    ``text`` is what the policy wrote; ``action`` its canonical form in the UI-TARS grammar, null if it did not parse.
    ``tokens``, ``logprobs`` (nats, of the sampled tokens at generation time) and ``entropies`` (nats, of the
    distributions they were drawn from) have one entry per generated token, and are empty in a demonstration.
    """

    request_id: Name
    text: Prose
    action: Prose | None
    tokens: list[Token]
    logprobs: list[Real]
    entropies: list[Real]
    versions: list[VersionSpan]
    prompt_sha: Digest
    queue_ms: Milliseconds
    generate_ms: Milliseconds
    execute_ms: Milliseconds


class EpisodeEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a trajectory ended. ``reward`` is in [0, 1], and null exactly for outcomes that carry none."""

    kind: OutcomeKind
    reward: Reward | None
    reason: Prose = ""


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """Step ``step`` of a trajectory (0 = after reset): the screen, the action taken, the episode's end if it is last.

    ``instruction`` is the task in words, as the environment states it after reset: with it a prompt can be rendered
    from the log alone. ``screenshot`` is null only where the environment could not show one (an ``env_error``).
    """

    trajectory_id: Name
    order: RolloutOrder
    step: Steps
    instruction: Prose
    screenshot: BlobRef | None
    taken: ExecutedAction | None
    end: EpisodeEnd | None
    env_host: Name
    at_ms: EpochMs


TOPIC = Topic(name="observations", event=Observation, key="trajectory_id", partitions=4)
