"""Notices topics that are deleted, made anew, or given more partitions, while a process uses them.

Clients only wait then: a request whose topic is gone looks like a policy that does not answer, and a record whose key
has moved to a new partition is read by who does not know what came before it. Of a topic made anew under its name a
client passes over what has an offset below its position.
"""

import asyncio
import contextlib
from collections.abc import Collection, Mapping, Sequence

import structlog
from aiokafka.errors import KafkaError

from dart_streams.bus.clients import Publisher
from dart_streams.bus.topic_ids import recreated_topics
from dart_streams.config import Bus
from dart_streams.errors import ServiceUnavailable, UserError
from topics import Topic

CHECK_INTERVAL_S = 5.0
"""Time between two looks. A topic has to be missing twice: a broker that has just started may not know all of them."""

log = structlog.get_logger()


class TopicGrown(UserError):
    """A topic was given partitions although records of one key must stay together."""


class TopicRecreated(UserError):
    """A topic was deleted and made again; the supervisor starts this process again."""

    exit_code = 1


async def watch_topics(
    publisher: Publisher,
    used: Sequence[Topic],
    fixed: Collection[Topic] = (),
    ids: Mapping[str, str] | None = None,
) -> None:
    """Watch the topics that a process uses, until cancelled; of the ``fixed`` ones the number of partitions must stay.

    ``ids`` are those of when the process began to use them, by default of now.

    Raises :class:`ServiceUnavailable` that names a topic which is gone, :class:`TopicGrown` one that was grown, and
    :class:`TopicRecreated` one that has another id.
    """
    before = {topic.name: await publisher.partitions_of(topic) for topic in fixed}
    names = [topic.name for topic in used]
    known = dict(ids or {})
    with contextlib.suppress(KafkaError):
        known = known or await publisher.topic_ids(names)
    missing: set[str] = set()
    while True:
        await asyncio.sleep(CHECK_INTERVAL_S)
        try:
            now = await publisher.partition_counts(names)
            found = await publisher.topic_ids(names)
        except KafkaError as error:
            log.debug("topics not watched", reason=str(error) or type(error).__name__)
            continue
        if anew := recreated_topics(known, found):
            raise remade_error(publisher.bus, anew[0])
        known = found | known
        refuse_growth(publisher.bus, before, now)
        gone = set(names) - now.keys()
        if lost := sorted(gone & missing):
            raise gone_error(publisher.bus, lost[0])
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


def remade_error(bus: Bus, name: str) -> TopicRecreated:
    """Return the error that a topic is another one than before."""
    return TopicRecreated(
        f"topic {bus.prefix}{name} was deleted and made again while this process used it: what was in it is gone. "
        "Nothing needs to be done: started again, this process reads it from its beginning, and orders that can never "
        "end are found and ordered again"
    )


def gone_error(bus: Bus, name: str) -> ServiceUnavailable:
    """Return the error that a topic which was there is not any more."""
    return ServiceUnavailable(
        f"topic {bus.prefix}{name} is gone from the broker at {bus.servers}: somebody has deleted it, and the records "
        "in it. Make it again with `dart-streams topics apply`; processes that were started go on with it"
    )
