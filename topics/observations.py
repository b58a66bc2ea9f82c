"""observations: the screen after each action of a trajectory, with that action. These records are the trajectory."""

import msgspec

from topics.rollout_orders import RolloutOrder
from topics.topic import Topic
from topics.values import BlobRef, OutcomeKind, VersionSpan


class ExecutedAction(msgspec.Struct, frozen=True, kw_only=True):
    """The action that led to an observation, as generated and as executed.

    ``text`` is what the policy wrote; ``action`` its canonical form in the UI-TARS grammar, null if it did not parse.
    ``tokens``, ``logprobs`` (nats, of the sampled tokens at generation time) and ``entropies`` (nats, of the
    distributions they were drawn from) have one entry per generated token, and are empty in a demonstration.
    """

    request_id: str
    text: str
    action: str | None
    tokens: list[int]
    logprobs: list[float]
    entropies: list[float]
    versions: list[VersionSpan]
    prompt_sha: str
    queue_ms: float
    generate_ms: float
    execute_ms: float


class EpisodeEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a trajectory ended. ``reward`` is in [0, 1], and null exactly for outcomes that carry none."""

    kind: OutcomeKind
    reward: float | None
    reason: str = ""


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """Step ``step`` of a trajectory (0 = after reset): the screen, the action taken, the episode's end if it is last.

    ``instruction`` is the task in words, as the environment states it after reset: with it a prompt can be rendered
    from the log alone. ``screenshot`` is null only where the environment could not show one (an ``env_error``).
    """

    trajectory_id: str
    order: RolloutOrder
    step: int
    instruction: str
    screenshot: BlobRef | None
    taken: ExecutedAction | None
    end: EpisodeEnd | None
    env_host: str
    at_ms: int


TOPIC = Topic(name="observations", event=Observation, key="trajectory_id", partitions=4)
