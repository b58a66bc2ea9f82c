"""curation-log: the inputs of each data-manager agent in the order of their application, and its decisions."""

import msgspec

from topics.topic import Topic
from topics.values import Count, Digest, Name, Partition


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The applied record; ``topic`` has no prefix."""

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
