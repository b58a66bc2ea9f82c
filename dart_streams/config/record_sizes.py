"""The largest possible record of each topic, and the keys that make it smaller. Pure.

Sizes are bytes of JSON. A text has :data:`TEXT` bytes for each token; senders refuse longer texts
(:class:`dart_streams.bus.codec.Unencodable`).
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import topics
from dart_streams.config.recipes import settings_type
from topics.feedback import MOST_CORRECTION
from topics.tasks import MOST_ACTION, MOST_ACTIONS, MOST_DOCUMENT
from topics.trajectories import MOST_TAKE_OVERS

if TYPE_CHECKING:
    from dart_streams.config.deployment import Config

MOST_TOKENS = 32_768
"""Tokens of the longest answer."""
FIXED = 64 * 1024
"""An event's names (512 characters of up to 6 bytes), digests, times and reason."""
WORDS = 128 * 1024
"""The instruction, or the fixed part of a prompt."""
NUMBER = 25
"""A float64: ``-1.2345678901234567e-300,``."""
TOKEN = 11 + 2 * NUMBER
"""A token's id, log-probability and entropy."""
TEXT = 8
"""The text of a token: two characters of Chinese, or eight of English."""
CANONICAL = 2 * TEXT
"""The same text in a canonical action, with doubly escaped characters."""
CALLS = 2 * 65_536
"""The functions that an environment offers, whose quotes are escaped again in a prompt."""
RETURNED = 6 * 2000 + 120
"""What calls returned, of characters that JSON escapes, as a part of a prompt."""
PART = 120
"""A part of a prompt without its text."""
IMAGE = 400
"""A reference to a screenshot."""
INDEX = 6
"""The index of a step of an episode, of 10,000 at most."""
ID = 40
"""A trajectory's id (a UUID) in a list."""
SCREEN = 19
"""The key of a screen in a list."""
ACTION = 80
"""The name and the place of an action in a list."""
ORDER_ID = 32
ESCAPED = 6
"""A character of a proposed task: a control character as ``\\u0001``."""
MOST_FEEDBACK = 1024
"""Groups of feedback that a step may name."""
SOLUTION = MOST_ACTIONS * (MOST_ACTION * ESCAPED + 3)
"""The actions of a proposed task, which an order of its check has too."""
PAST = 2 * 4096
"""Trajectories of the past that rules of recipes may imitate and replay in a step: as many as they remember."""
PAGE_METRIC = 3200
"""A metric of a page, whose name is part of it."""


class Largest(NamedTuple):
    """The largest record of a topic, and the keys that lower it."""

    value_bytes: int
    keys: str = ""


def largest_records(config: "Config", max_steps: int = 1) -> dict[str, Largest]:
    """Return the largest record of each topic by name, for tasks of ``max_steps`` steps."""
    sizes = {topic.name: Largest(FIXED) for topic in topics.ALL}
    return sizes | of_answers(config) | of_groups(config, max_steps) | of_decisions(config) | of_weights(config)


def of_answers(config: "Config") -> dict[str, Largest]:
    """Return the sizes of records with prompts and answers."""
    policy = config.policy
    tokens = policy.max_tokens
    # Offered functions, and what calls returned, once a record and with each earlier answer.
    calls, returned = (CALLS, RETURNED) if config.env.offers_calls else (0, 0)
    texts = policy.max_texts * (PART + tokens * TEXT + returned)
    plan = SOLUTION if config.tasks.proposals else 0
    return {
        "rollout-orders": Largest(FIXED + plan),
        "tasks": Largest(FIXED + SOLUTION + MOST_DOCUMENT * ESCAPED),
        "actions": Largest(FIXED + tokens * (TOKEN + TEXT), "policy.max_tokens"),
        "observations": Largest(
            FIXED + WORDS + calls + plan + tokens * (TOKEN + TEXT + CANONICAL), "policy.max_tokens"
        ),
        "action-requests": Largest(
            FIXED + WORDS + calls + texts + policy.max_images * (PART + IMAGE),
            "policy.max_texts, policy.max_tokens or policy.max_images",
        ),
    }


def of_groups(config: "Config", max_steps: int) -> dict[str, Largest]:
    """Return the sizes of records of whole episodes and groups."""
    curation, trainer = config.curation, config.trainer
    rollouts = curation.budget.base
    # A recipe may credit steps, and order recorded ones.
    step, recorded = INDEX + (NUMBER if config.recipe else 0), INDEX if config.recipe else 0
    member = ID + 4 * NUMBER + PART
    # Steps that count tokens may take what dispatch admits; recipes, as many past trajectories as they remember.
    groups = trainer.groups_per_step * (1 + (curation.max_staleness if counts_tokens(config.recipe) else 0))
    past = trainer.imitate.trajectories + (PAST if config.recipe else 0)
    # A group of feedback may have an action, and names it; a step names new feedback, and what it imitates again.
    # A trajectory that people took over names that feedback too, and has their steps.
    people, taken = (MOST_TAKE_OVERS * ID, INDEX) if config.feedback.enabled else (0, 0)
    said = MOST_CORRECTION * ESCAPED + people if config.feedback.enabled else 0
    past += MOST_FEEDBACK if config.feedback.enabled else 0
    return {
        "trajectories": Largest(
            FIXED + people + max_steps * (NUMBER + SCREEN + ACTION + recorded + taken), "max_steps of the task file"
        ),
        "curated": Largest(
            FIXED + said + rollouts * (member + max_steps * step), "curation.budget.base or max_steps of the task file"
        ),
        "trained": Largest(
            FIXED + groups * (PAGE_METRIC + rollouts * ID) + past * ID,
            "trainer.groups_per_step, curation.budget.base, trainer.imitate, or the recipes",
        ),
    }


def counts_tokens(names: Iterable[str]) -> bool:
    """Return whether one of these recipes fills a step by its tokens."""
    return any(getattr(settings_type(name), "counts_tokens", False) for name in names)


def of_decisions(config: "Config") -> dict[str, Largest]:
    """Return the size of the log of one input, which may cause all orders of a deployment or a batch."""
    rollouts = config.curation.budget.base
    if config.curation.dispatch.mode == "coupled":
        orders = config.trainer.groups_per_step * rollouts
        return {"curation-log": Largest(FIXED + orders * ORDER_ID, "trainer.groups_per_step or curation.budget.base")}
    orders = 2 * config.env.workers * config.env.slots + rollouts
    keys = "env.workers, env.slots or curation.budget.base"
    return {"curation-log": Largest(FIXED + orders * ORDER_ID, keys)}


def of_weights(config: "Config") -> dict[str, Largest]:
    """Return the size of a version, which names its parts."""
    uri = config.trainer.weights_uri or str(config.run.folder.absolute())
    part = 6 * len(uri) + 2 * 64 + IMAGE
    keys = "trainer.publish.full_every, or the length of trainer.weights_uri or run.state_dir"
    return {"weights": Largest(FIXED + (1 + config.trainer.publish.full_every) * part, keys)}


def size_refusal(config: "Config", max_steps: int = 1) -> str:
    """Return the reason and the keys to lower if a record could exceed its topic's bound, else an empty text."""
    for name, largest in largest_records(config, max_steps).items():
        room = topics.BY_NAME[name].max_message_bytes
        if largest.value_bytes > room:
            return (
                f"a record on {name} could take {largest.value_bytes} bytes, and one has at most {room}: lower "
                f"{largest.keys}"
            )
    return ""
