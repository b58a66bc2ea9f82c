"""The largest event of each topic that a deployment's configuration can reach.

Texts take as many bytes a token as ``dart_streams/config/record_sizes.py`` counts. The configuration decides on them
and on the lengths of lists; all else is the largest that the contract's bounds allow.
"""

from collections.abc import Callable
from typing import Any

import msgspec

import topics
from dart_streams.config import Config
from dart_streams.config.record_sizes import CANONICAL, TEXT, counts_tokens
from dart_streams.errors import MAX_REASON
from dart_streams.policy import weight_location
from topics.curated import Member
from topics.feedback import MOST_CORRECTION
from topics.observations import ExecutedAction
from topics.rollout_orders import RolloutOrder
from topics.tasks import MOST_ACTION, MOST_ACTIONS, MOST_DOCUMENT
from topics.trained import TrainedToken
from topics.trajectories import MOST_TAKE_OVERS, StepAction
from topics.values import HEX, IN_A_NAME, BlobRef, MessagePart, Sampling, VersionSpan
from topics.weights import WeightPart
from trainer.data.successes import MAX_REMEMBERED

UUID = "0" * 36
WORDS = "w" * 100_000
"""An instruction."""
REAL, SHARE = -1.2345678901234567e-300, 0.12345678901234568
TOKEN = 2**31 - 1
ORDER_ID = "g999999/65535/9999"


def largest_value(kind: Any) -> Any:
    """Return the value of a type that takes most bytes: a list is empty, and a text no longer than a reason."""
    match kind:
        case msgspec.inspect.StructType(cls=event):
            return largest_of(event)
        case msgspec.inspect.UnionType(types=types):
            return largest_value(next(member for member in types if not isinstance(member, msgspec.inspect.NoneType)))
        case msgspec.inspect.LiteralType(values=values):
            return max(map(str, values), key=len)
        case msgspec.inspect.BoolType():
            return True
        case msgspec.inspect.IntType(le=int(most)):
            return most
        case msgspec.inspect.FloatType(ge=(int() | float()) as least):
            return REAL if least < 0 else SHARE
        case msgspec.inspect.StrType(max_length=int(most), pattern=pattern):
            return {None: "\1", HEX: "f", IN_A_NAME: "\U0001f310"}[pattern] * min(most, MAX_REASON)
        case msgspec.inspect.ListType():
            return []
    raise TypeError(f"{kind}: which of its values takes most bytes?")


def largest_of(event: type, **known: Any) -> Any:
    """Return the largest event of a type, but for the fields that are ``known``."""
    fields = msgspec.inspect.type_info(event).fields  # type: ignore[attr-defined]
    return event(**{field.name: largest_value(field.type) for field in fields if field.name not in known}, **known)


def largest_event(topic: str, config: Config, max_steps: int = 1) -> Any:
    """Return the largest event of a topic; ``max_steps`` is the largest step limit of the tasks."""
    known = KNOWN.get(topic, lambda _config, _max_steps: {})
    return largest_of(topics.BY_NAME[topic].event, **known(config, max_steps))


def sampling(config: Config) -> Sampling:
    """Return the sampling parameters with the most digits."""
    return Sampling(temperature=1.2345678901234567, top_p=SHARE, max_tokens=config.policy.max_tokens)


def order(config: Config, max_steps: int) -> dict[str, Any]:
    """Return the fields of an order."""
    plan = ["\1" * MOST_ACTION] * (MOST_ACTIONS if config.tasks.proposals else 0)
    return {"max_steps": max_steps, "sampling": sampling(config), "plan": plan}


def answer(config: Config) -> dict[str, Any]:
    """Return the fields of an answer."""
    count = config.policy.max_tokens
    return {
        "text": "t" * (TEXT * count),
        "tokens": [TOKEN] * count,
        "logprobs": [REAL] * count,
        "entropies": [REAL] * count,
        "versions": [largest_of(VersionSpan)] * 8,
    }


def screenshot() -> BlobRef:
    """Return a reference as :func:`dart_streams.store.blobs.ref_of` makes it."""
    return largest_of(BlobRef, sha256="f" * 64, media_type="image/svg+xml")


def observation(config: Config, max_steps: int) -> dict[str, Any]:
    """Return the fields of the last observation of an episode."""
    action = "a" * (CANONICAL * config.policy.max_tokens)
    return {
        "order": largest_of(RolloutOrder, **order(config, max_steps)),
        "instruction": WORDS,
        "screenshot": screenshot(),
        "taken": largest_of(ExecutedAction, action=action, **answer(config)),
    }


def request(config: Config, _max_steps: int) -> dict[str, Any]:
    """Return the fields of a request whose history is as long as it gets."""
    policy = config.policy
    text = MessagePart(role="assistant", text="t" * (TEXT * policy.max_tokens), separate=True)
    image = MessagePart(role="user", image=screenshot(), separate=True)
    turns = [MessagePart(role="system", text=WORDS), *[text] * policy.max_texts, *[image] * policy.max_images]
    return {"turns": turns, "sampling": sampling(config)}


def group(config: Config, max_steps: int) -> dict[str, Any]:
    """Return the fields of a group of the largest size, of which every step of every member is selected."""
    weighed = [REAL] * max_steps if config.recipe else []
    member = largest_of(Member, trajectory_id=UUID, selected=list(range(max_steps)), step_advantages=weighed)
    corrections = ["\1" * MOST_CORRECTION] if config.feedback.enabled else []
    last = msgspec.structs.replace(member, corrections=corrections)
    return {
        "members": [*[member] * (config.curation.budget.base - 1), last],
        "feedback": ["f" * 32] * (MOST_TAKE_OVERS if config.feedback.enabled else 1),
    }


def trained_step(config: Config, _max_steps: int) -> dict[str, Any]:
    """Return the fields of a step of as many groups as one takes, each of a page of its own."""
    trainer, curation = config.trainer, config.curation
    groups = trainer.groups_per_step * (1 + (curation.max_staleness if counts_tokens(config.recipe) else 0))
    page = "\U0001f310" * 474
    return {
        "group_ids": ["g999999"] * groups,
        "trajectory_ids": [UUID] * (groups * curation.budget.base),
        "metrics": {f"a figure of the step {number:04d}": REAL for number in range(200)}
        | {f"reward/{number:06d}{page}": REAL for number in range(groups)}
        | {f"staleness/{number}": REAL for number in range(groups)},
        "imitated": [UUID] * trainer.imitate.trajectories,
        "sft_updates": [[UUID] * MAX_REMEMBERED] if config.recipe else [],
        "replayed": [UUID] * (MAX_REMEMBERED if config.recipe else 0),
        "top_tokens": [largest_of(TrainedToken)] * 10,
        "feedback": [f"feedback-{UUID}"] * (2 * config.feedback.recent if config.feedback.enabled else 0),
    }


def weight_version(config: Config, _max_steps: int) -> dict[str, Any]:
    """Return the fields of a version that is made of as many parts as there may be."""
    location = {
        "uri": f"{weight_location.base_of(config)}/v999999999-e999999999-base",
        "sha256": "f" * 64,
        "file_sha256": "e" * 64,
    }
    return {**location, "base": [largest_of(WeightPart, **location)] * config.trainer.publish.full_every}


def applied(config: Config, _max_steps: int) -> dict[str, Any]:
    """Return the fields of the entry of an input that made room for every order at once."""
    rollouts = config.curation.budget.base
    orders = 2 * config.env.workers * config.env.slots + rollouts
    if config.curation.dispatch.mode == "coupled":
        orders = config.trainer.groups_per_step * rollouts
    return {"decisions": [ORDER_ID] * orders}


KNOWN: dict[str, Callable[[Config, int], dict[str, Any]]] = {
    "rollout-orders": order,
    "observations": observation,
    "action-requests": request,
    "actions": lambda config, _max_steps: answer(config),
    "trajectories": lambda config, max_steps: {
        "steps": max_steps,
        "step_entropies": [REAL] * max_steps,
        "screens": ["f" * 16] * max_steps,
        "actions": [largest_of(StepAction, name="n" * 32)] * max_steps,
        "recorded_steps": list(range(max_steps)) if config.recipe else [],
        "person_steps": list(range(max_steps)) if config.feedback.enabled else [],
        "take_overs": ["f" * 32] * MOST_TAKE_OVERS if config.feedback.enabled else [],
    },
    "tasks": lambda _config, _max_steps: {
        "document": "\1" * MOST_DOCUMENT,
        "solution": ["\1" * MOST_ACTION] * MOST_ACTIONS,
    },
    "curated": group,
    "weights": weight_version,
    "trained": trained_step,
    "curation-log": applied,
}
"""The fields on which the configuration decides, by topic."""
