"""curation-log: the inputs that each data-manager agent applied, in order, and its decisions."""

import msgspec

from topics.topic import Topic
from topics.values import Count, Digest, Name, Partition


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The record that was applied; ``topic`` carries no prefix."""

    topic: Name
    partition: Partition
    offset: Count


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """Agent ``agent`` applied ``source`` and made ``decisions`` (record ids); ``state_digest`` chains all so far."""

    agent: Name
    source: Source
    decisions: list[Name]
    state_digest: Digest


TOPIC = Topic(name="curation-log", event=Applied, key="agent")
