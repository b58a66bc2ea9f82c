"""Reducers: input, output, and the single step of every agent and replay.

Delivery is at least once, so records repeat in two ways. A redelivered record is recognized by the last applied offset
of its partition. A decision published again is recognized by its id: that of the causing record, and these only grow.
"""

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from dart_streams.errors import UserError
from topics import Topic
from topics.curation_log import Applied, Source
from topics.values import MOST_NAME

MAX_CAUSE_DIGITS = 18
"""Maximum digits of the offset in a decision's id, which then fits into 63 bits."""
MAX_CAUSES_AHEAD = 4096
"""Maximum inputs by which a decision's cause may follow the previous one. A decision beyond that is applied, repeats
included; trackers of orders and groups recognize those."""


class InvalidEvent(Exception):
    """An event that decodes but cannot be applied; it is dead-lettered with the text as reason."""


class InputRecord(NamedTuple):
    """An input: event, place (``topic`` without prefix), ``id`` header and timestamp (epoch ms)."""

    topic: str
    partition: int
    offset: int
    event: Any
    id: str = ""
    at_ms: int = 0


class Decision(NamedTuple):
    """An event to publish on ``topic`` under the record id ``id``."""

    topic: Topic
    id: str
    event: msgspec.Struct


class RefusedInput(NamedTuple):
    """An earlier input that goes to the dead letters, by its place, and the reason."""

    source: Source
    reason: str


Effect = Decision | RefusedInput


class AgentProgress(msgspec.Struct):
    """An agent's progress: applied offsets, the newest cause of each upstream agent, a digest of all decisions.

    ``topic_ids`` has the broker's id of each input. ``bases`` has, for partitions of recreated inputs, the number to
    add to offsets in decision ids, so that these only grow.
    """

    applied: dict[str, int] = {}
    causes: dict[str, int] = {}
    digest: str = ""
    topic_ids: dict[str, str] = {}
    bases: dict[str, int] = {}


class Agent(NamedTuple):
    """An agent: its topics, the type of its state and its reducer, with the settings already bound.

    A state is a Struct with a field ``progress``, an :class:`AgentProgress`. The reducer changes the state it is given
    and returns it; the old one must not be used any more.
    """

    name: str
    inputs: tuple[Topic, ...]
    outputs: tuple[Topic, ...]
    state: type[Any]
    apply: Callable[[Any, InputRecord], tuple[Any, Sequence[Effect]]]
    note_made_anew: Callable[[Any, str], None] = lambda _, __: None
    """Changes the state for a recreated input (by name), whose unread records are gone."""


class ReducerResult(NamedTuple):
    """The result of one record; ``refused`` is the reason to dead-letter it, or empty.

    ``refusals`` are those of earlier ones.
    """

    state: Any
    decisions: list[Decision]
    applied: Applied | None
    refused: str = ""
    refusals: Sequence[RefusedInput] = ()


def source_of(record: InputRecord) -> Source:
    """Return the place of an input."""
    return Source(topic=record.topic, partition=record.partition, offset=record.offset)


def cause_id(agent: str, record: InputRecord) -> str:
    """Return the id of the decision that ``agent`` makes because of ``record``."""
    return f"{agent}/{record.topic}/{record.partition}/{record.offset}"


def note_topic_ids(agent: Agent, state: Any, topic_ids: Mapping[str, str]) -> list[str]:
    """Note the ids of an agent's inputs; return the recreated ones, whose offsets restart at 0."""
    progress: AgentProgress = state.progress
    inputs = {topic.name for topic in agent.inputs}
    anew = [
        name
        for name in sorted(inputs & topic_ids.keys())
        if progress.topic_ids.get(name, topic_ids[name]) != topic_ids[name]
    ]
    for partition in [place for place in progress.applied if place.rpartition("/")[0] in anew]:
        progress.bases[partition] = progress.bases.get(partition, 0) + progress.applied.pop(partition) + 1
    for name in anew:
        agent.note_made_anew(state, name)
    progress.topic_ids |= {name: topic_ids[name] for name in inputs & topic_ids.keys()}
    return anew


def advance(agent: Agent, state: Any, record: InputRecord) -> ReducerResult:
    """Apply ``record``; a repeated one leaves the state unchanged, and ``applied`` is None.

    A record that can't be applied is refused, whatever it raises: else it would end the curator at each start. Only the
    error of a recipe's rule (UserError) is raised, since a person can mend that.
    """
    progress: AgentProgress = state.progress
    partition = f"{record.topic}/{record.partition}"
    if record.offset <= progress.applied.get(partition, -1):
        return ReducerResult(state, [], None)
    progress.applied[partition] = record.offset
    effects: Sequence[Effect] = ()
    refused = ""
    if not is_repeated(progress, record):
        try:
            base = progress.bases.get(partition, 0)
            state, effects = agent.apply(state, record._replace(offset=base + record.offset) if base else record)
        except UserError:
            raise
        except Exception as error:  # noqa: BLE001 - the record is at fault, and refused by name
            refused = str(error) if isinstance(error, InvalidEvent) else f"it can't be applied: {error!r}"
    decisions = [effect for effect in effects if isinstance(effect, Decision)]
    if (longest := max((len(decision.id) for decision in decisions), default=0)) > MOST_NAME:
        refused = f"what is decided on it would have an id of {longest} characters, and at most {MOST_NAME} are allowed"
        decisions = []
    progress.digest = chain_digest(progress.digest, partition, record.offset, decisions)
    applied = Applied(
        agent=agent.name,
        source=source_of(record),
        decisions=[decision.id for decision in decisions],
        state_digest=progress.digest,
    )
    refusals = [effect for effect in effects if isinstance(effect, RefusedInput)]
    return ReducerResult(state, decisions, applied, refused, refusals)


def is_repeated(progress: AgentProgress, record: InputRecord) -> bool:
    """Return whether ``record`` repeats a decision, and note its cause if not.

    Agents publish decisions in the order of their causes, and after a crash again from some point on. So anything not
    newer than the newest cause is a repeat. Ids of other form are ignored, and so are causes far ahead: a foreign one
    would turn every later decision into a repeat.
    """
    source, _, offset = record.id.rpartition("/")
    if source.count("/") != 2 or not offset.isdecimal() or len(offset) > MAX_CAUSE_DIGITS:
        return False
    key, cause = f"{record.topic}/{record.partition} {source}", int(offset)
    newest = progress.causes.get(key, -1)
    if newest < cause <= newest + MAX_CAUSES_AHEAD:
        progress.causes[key] = cause
    return cause <= newest


_encoder = msgspec.json.Encoder()


def chain_digest(digest: str, partition: str, offset: int, decisions: list[Decision]) -> str:
    """Return the digest after one more input: of the previous digest, the input's place and the decisions.

    Digesting the whole state would cost more than all else; differing states show at the first differing decision.
    """
    hashed = blake2b(f"{digest} {partition}/{offset}".encode(), digest_size=16)
    for decision in decisions:
        hashed.update(decision.id.encode())
        hashed.update(_encoder.encode(decision.event))
    return hashed.hexdigest()
