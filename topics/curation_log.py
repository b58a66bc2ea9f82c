"""curation-log: which input each data-manager agent applied, in order, and what it decided."""

import msgspec

from topics.topic import Topic


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The record that was applied; ``topic`` carries no prefix."""

    topic: str
    partition: int
    offset: int


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """Agent ``agent`` applied ``source`` and made ``decisions``; ``state_digest`` is of its state after that."""

    agent: str
    source: Source
    decisions: list[str]
    state_digest: str


TOPIC = Topic(name="curation-log", event=Applied, key="agent")
