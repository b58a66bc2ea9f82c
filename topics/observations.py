"""observations: the screen after each action of a trajectory, with that action. The records are the trajectory."""

import msgspec

from topics.rollout_orders import RolloutOrder
from topics.topic import Topic
from topics.values import (
    BlobRef,
    Digest,
    EpochMs,
    Milliseconds,
    Name,
    OfferedCall,
    OutcomeKind,
    Prose,
    Real,
    Reward,
    Steps,
    Token,
    Verdict,
    VersionSpan,
)


class ExecutedAction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The action that led to an observation, as generated and as executed.

    ``text`` is the policy's answer; ``action`` is its canonical form in the UI-TARS grammar, null if it did not parse.
    ``tokens``, ``logprobs`` (nats, of the sampled tokens) and ``entropies`` (nats, of their distributions) have one
    entry per generated token, and are empty in a demonstration. ``recorded_from`` is the trajectory of a recorded
    action, which has no tokens either. It is omitted for an action of the policy or an oracle. ``take_over`` is the id
    of the feedback by which a person took this action in place of the policy. It has no tokens, and the field is
    omitted for any other action.
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
    recorded_from: Name | None = None
    take_over: Name | None = None


class EpisodeEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a trajectory. ``reward`` is in [0, 1], and null exactly for outcomes without a reward."""

    kind: OutcomeKind
    reward: Reward | None
    reason: Prose = ""


class Observation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Step ``step`` of a trajectory (0 = after reset): the screen, the action before it, and the end in the last step.

    ``instruction`` is the environment's text of the task after reset, so that prompts can be rendered from the log.
    ``screenshot`` is null only where the environment failed to show one (an ``env_error``). Step 0 has the ``calls``
    that the environment offers, and a step after one has what it ``returned``. The last step may have the ``verdict``
    of a recipe's judge. ``asks`` is the id of the take-over whose person is asked for the next action. All four are
    omitted otherwise.
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
    calls: list[OfferedCall] = []
    returned: Prose = ""
    verdict: Verdict | None = None
    asks: Name | None = None


TOPIC = Topic(name="observations", event=Observation, key="trajectory_id", partitions=4, shared=True)
