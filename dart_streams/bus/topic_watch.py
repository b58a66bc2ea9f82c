"""Notices topics that are deleted, or given more partitions, while a process uses them.

Clients only wait then: a request whose topic is gone looks like a policy that does not answer, and a record whose key
has moved to a new partition is read by who does not know what came before it.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence

import structlog
from aiokafka.errors import KafkaError

from dart_streams.bus.clients import Publisher
from dart_streams.config import Bus
from dart_streams.errors import ServiceUnavailable, UserError
from topics import Topic

CHECK_S = 5.0
"""Time between two looks. A topic has to be missing twice: a broker that has just started may not know all of them."""

log = structlog.get_logger()


class TopicGrown(UserError):
    """A topic was given partitions although records of one key must stay together."""


async def watch_topics(publisher: Publisher, used: Sequence[Topic], fixed: Collection[Topic] = ()) -> None:
    """Watch the topics that a process uses, until cancelled; of the ``fixed`` ones the number of partitions must stay.

    Raises :class:`ServiceUnavailable` that names a topic which is gone, and :class:`TopicGrown` one that was grown.
    """
    before = {topic.name: await publisher.partitions_of(topic) for topic in fixed}
    missing: set[str] = set()
    while True:
        await asyncio.sleep(CHECK_S)
        try:
            now = await publisher.partition_counts(topic.name for topic in used)
        except KafkaError as error:
            log.debug("topics not watched", reason=str(error) or type(error).__name__)
            continue
        refuse_growth(publisher.bus, before, now)
        gone = {topic.name for topic in used} - now.keys()
        if lost := sorted(gone & missing):
            raise gone_from(publisher.bus, lost[0])
        missing = gone


def refuse_growth(bus: Bus, before: Mapping[str, int], now: Mapping[str, int]) -> None:
    """Raise :class:`TopicGrown` for the first topic that has more partitions than before."""
    for name, count in before.items():
        if now.get(name, count) > count:
            raise TopicGrown(
                f"topic {bus.prefix}{name} was given partitions during the run ({count} before, {now[name]} now): the "
                "rollouts of a task, and so of a group, would no longer come to one place. Kafka can't take partitions "
                "away: go on as a new run (another bus.prefix), with as many partitions from its start"
            )


def gone_from(bus: Bus, name: str) -> ServiceUnavailable:
    """Return the error that a topic which was there is not any more."""
    return ServiceUnavailable(
        f"topic {bus.prefix}{name} is gone from the broker at {bus.servers}: somebody has deleted it, and the records "
        "in it. Make it again with `dart-streams topics apply`; processes that were started go on with it"
    )
