"""The largest event of each topic that a deployment's configuration can reach, built from the configuration alone.

Texts take as many bytes a token as ``dart_streams/config/record_sizes.py`` counts; names, digests and reasons have the
length and the characters that take most, numbers the most digits.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from dart_streams.config import Config
from dart_streams.config.record_sizes import CANONICAL, TEXT
from dart_streams.errors import MAX_REASON
from dart_streams.policy import weight_location
from topics.action_requests import ActionRequest
from topics.actions import ActionResponse
from topics.curated import CuratedGroup, Member
from topics.curation_log import Applied, Source
from topics.observations import EpisodeEnd, ExecutedAction, Observation
from topics.rollout_budgets import RolloutBudget
from topics.rollout_orders import RolloutOrder
from topics.task_difficulty import Cause, TaskDifficulty
from topics.trained import TrainedStep, TrainedToken
from topics.trajectories import Trajectory
from topics.values import BlobRef, MessagePart, Sampling, VersionSpan
from topics.weights import WeightPart, WeightVersion
from topics.weights_serving import WeightsServing

NAME = "\1" * 512
DIGEST = "\1" * 128
REASON = "\1" * MAX_REASON
UUID = "0" * 36
WORDS = "w" * 100_000
"""An instruction."""
REAL = -1.2345678901234567e-300
VERSION, COUNT, TIME_MS, STEP, TOKEN = 10**9, 10**12, 253_402_300_799_999, 9_999, 2**31 - 1
DURATION_MS = -123456789.12345679
ORDER_ID = "g999999/65535/9999"


def largest_event(topic: str, config: Config, max_steps: int = 1) -> Any:
    """Return the largest event of a topic; ``max_steps`` is the largest step limit of the tasks."""
    return EVENTS[topic](config, max_steps)


def sampling(config: Config) -> Sampling:
    """Return the sampling parameters with the most digits."""
    return Sampling(temperature=1.2345678901234567, top_p=0.12345678901234568, max_tokens=config.policy.max_tokens)


def order(config: Config, max_steps: int) -> RolloutOrder:
    """Return an order."""
    return RolloutOrder(
        order_id=NAME,
        group_id=NAME,
        group_size=2**16,
        sample=2**16,
        attempt=10_000,
        task_id=NAME,
        max_steps=max_steps,
        purpose="demonstration",
        sampling=sampling(config),
        after_version=VERSION,
    )


def answer(config: Config) -> dict[str, Any]:
    """Return the fields of an answer."""
    count = config.policy.max_tokens
    return {
        "request_id": NAME,
        "text": "t" * (TEXT * count),
        "tokens": [TOKEN] * count,
        "logprobs": [REAL] * count,
        "entropies": [REAL] * count,
        "versions": [VersionSpan(version=VERSION, start=STEP, end=STEP)] * 8,
        "prompt_sha": DIGEST,
        "queue_ms": DURATION_MS,
        "generate_ms": DURATION_MS,
    }


def screenshot() -> BlobRef:
    """Return a reference as :func:`dart_streams.store.blobs.ref_of` makes it."""
    return BlobRef(sha256="f" * 64, size=COUNT, media_type="image/svg+xml", width=2**16, height=2**16)


def action_response(config: Config, _max_steps: int) -> ActionResponse:
    """Return a reply."""
    return ActionResponse(
        trajectory_id=NAME, step=STEP, prompt_tokens=TOKEN, worker_id=NAME, error=REASON, **answer(config)
    )


def observation(config: Config, max_steps: int) -> Observation:
    """Return the last observation of an episode."""
    action = "a" * (CANONICAL * config.policy.max_tokens)
    return Observation(
        trajectory_id=NAME,
        order=order(config, max_steps),
        step=STEP,
        instruction=WORDS,
        screenshot=screenshot(),
        taken=ExecutedAction(action=action, execute_ms=DURATION_MS, **answer(config)),
        end=EpisodeEnd(kind="invalid_action", reward=0.12345678901234568, reason=REASON),
        env_host=NAME,
        at_ms=TIME_MS,
    )


def request(config: Config, max_steps: int) -> ActionRequest:
    """Return a request whose history is as long as it gets."""
    policy = config.policy
    text = MessagePart(role="assistant", text="t" * (TEXT * policy.max_tokens), separate=True)
    image = MessagePart(role="user", image=screenshot(), separate=True)
    return ActionRequest(
        request_id=NAME,
        trajectory_id=NAME,
        step=STEP,
        turns=[MessagePart(role="system", text=WORDS), *[text] * policy.max_texts, *[image] * policy.max_images],
        sampling=sampling(config),
        reply_partition=2**20,
        deadline_ms=TIME_MS,
    )


def trajectory(_config: Config, max_steps: int) -> Trajectory:
    """Return the summary of an episode of ``max_steps``."""
    return Trajectory(
        trajectory_id=NAME,
        order_id=NAME,
        group_id=NAME,
        group_size=2**16,
        attempt=10_000,
        task_id=NAME,
        purpose="demonstration",
        outcome="invalid_action",
        reward=0.12345678901234568,
        steps=max_steps,
        step_entropies=[REAL] * max_steps,
        version_min=VERSION,
        version_max=VERSION,
        started_ms=TIME_MS,
        finished_ms=TIME_MS,
        untrainable=f"{max_steps} of {max_steps} answers have no tokens with log-probabilities, the first at step 0",
    )


def group(config: Config, max_steps: int) -> CuratedGroup:
    """Return a group of the largest size, of which every step of every member is selected."""
    steps = list(range(max_steps))
    member = Member(
        trajectory_id=UUID,
        reward=0.12345678901234568,
        advantage=REAL,
        selected=steps,
        source="online",
        version_min=VERSION,
        version_max=VERSION,
        step_advantages=[REAL] * max_steps if config.curation.ui_s1.step_weight else [],
    )
    members = [member] * config.curation.budget.base
    return CuratedGroup(group_id=NAME, task_id=NAME, members=members, mean=REAL, std=REAL)


def trained_step(config: Config, _max_steps: int) -> TrainedStep:
    """Return a step of as many groups as one takes, each of a page of its own."""
    trainer, curation = config.trainer, config.curation
    groups = trainer.groups_per_step * (1 + (curation.max_staleness if trainer.c3po.tokens_per_step else 0))
    pulse = trainer.entropulse
    page = "\1" * 480
    token = TrainedToken(
        trajectory_id=NAME,
        step=STEP,
        index=STEP,
        token=TOKEN,
        logprob=REAL,
        log_ratio=REAL,
        weight=REAL,
        gradient_share=0.12345678901234568,
    )
    return TrainedStep(
        train_step=VERSION,
        version=VERSION,
        epoch=VERSION,
        group_ids=["g999999"] * groups,
        trajectory_ids=[UUID] * (groups * curation.budget.base),
        metrics={f"a figure of the step {number:04d}": REAL for number in range(200)}
        | {f"reward/{number:06d}{page[6:]}": REAL for number in range(groups)}
        | {f"staleness/{number}": REAL for number in range(groups)},
        at_ms=TIME_MS,
        imitated=[UUID] * trainer.imitate.trajectories,
        sft_updates=[[UUID] * pulse.trajectories] * pulse.updates if pulse.every else [],
        top_tokens=[token] * 10,
    )


def weight_version(config: Config, _max_steps: int) -> WeightVersion:
    """Return a version that is made of as many parts as there may be."""
    uri = f"{weight_location.base_of(config)}/v999999999-e999999999-base"
    part = WeightPart(version=VERSION, uri=uri, sha256="f" * 64, kind="adapter", file_sha256="e" * 64)
    return WeightVersion(
        model_id=config.policy.model_id,
        version=VERSION,
        uri=uri,
        sha256="f" * 64,
        train_step=VERSION,
        epoch=VERSION,
        groups_consumed=COUNT,
        kind="adapter",
        file_sha256="e" * 64,
        base=[part] * config.trainer.publish.full_every,
    )


def applied(config: Config, _max_steps: int) -> Applied:
    """Return the entry of an input that made room for every order at once."""
    rollouts = config.curation.budget.base
    orders = 2 * config.env.workers * config.env.slots + rollouts
    if config.curation.dispatch.mode == "coupled":
        orders = config.trainer.groups_per_step * rollouts
    source = Source(topic=NAME, partition=2**20, offset=COUNT)
    return Applied(agent=NAME, source=source, decisions=[ORDER_ID] * orders, state_digest=DIGEST)


CAUSE = Cause(trajectory_id=NAME, order_id=NAME, group_id=NAME, outcome="invalid_action", attempt=10_000)
EVENTS: dict[str, Callable[[Config, int], msgspec.Struct]] = {
    "rollout-orders": order,
    "observations": observation,
    "action-requests": request,
    "actions": action_response,
    "trajectories": trajectory,
    "task-difficulty": lambda _config, max_steps: TaskDifficulty(
        task_id=NAME, attempts=COUNT, successes=REAL, success_rate=0.5, longest_success=max_steps, cause=CAUSE
    ),
    "rollout-budgets": lambda _config, max_steps: RolloutBudget(
        task_id=NAME, rollouts=2**16, max_steps=max_steps, reason=REASON, cause=CAUSE
    ),
    "curated": group,
    "weights": weight_version,
    "weights-serving": lambda _config, _max_steps: WeightsServing(
        worker_id=NAME,
        version=VERSION,
        since_ms=TIME_MS,
        alive_ms=TIME_MS,
        failed_version=VERSION,
        error=REASON,
        pause_ms=DURATION_MS,
        sha256=DIGEST,
    ),
    "trained": trained_step,
    "curation-log": applied,
}
