"""curation-log: the inputs that each data-manager agent applied, in order, and its decisions."""

import msgspec

from topics.topic import Topic


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The record that was applied; ``topic`` carries no prefix."""

    topic: str
    partition: int
    offset: int


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """Agent ``agent`` applied ``source`` and made ``decisions`` (record ids); ``state_digest`` chains all so far."""

    agent: str
    source: Source
    decisions: list[str]
    state_digest: str


TOPIC = Topic(name="curation-log", event=Applied, key="agent")
