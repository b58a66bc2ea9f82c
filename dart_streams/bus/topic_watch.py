"""Detects topics that are deleted, recreated or grown while a process uses them.

Clients only wait then: a request to a deleted topic looks like a policy that does not answer, and a key moved to a new
partition loses its order. In a recreated topic a client skips records below its position.
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
"""Interval between checks. A topic must be missing twice, since a broker that has just started may not know all of
them."""

log = structlog.get_logger()


class TopicGrown(UserError):
    """A topic was given partitions although records of one key must stay together."""


class TopicRecreated(UserError):
    """A topic was deleted and created again; the supervisor restarts this process."""

    exit_code = 1


async def watch_topics(
    publisher: Publisher, used: Sequence[Topic], fixed: Collection[Topic] = (), ids: Mapping[str, str] | None = None
) -> None:
    """Watch the topics of a process until cancelled; ``fixed`` topics must keep their partition count.

    ``ids`` are the topic ids when the process began to use them, by default the present ones.

    Raises :class:`ServiceUnavailable` for a deleted topic, :class:`TopicGrown` for a grown one and
    :class:`TopicRecreated` for one with another id.
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
            ids_now = await publisher.topic_ids(names)
        except KafkaError as error:
            log.debug("topics not watched", reason=str(error) or type(error).__name__)
            continue
        if anew := recreated_topics(known, ids_now):
            raise remade_error(publisher.bus, anew[0])
        known = ids_now | known
        refuse_growth(publisher.bus, before, now)
        gone = set(names) - now.keys()
        if lost := sorted(gone & missing):
            raise gone_error(publisher.bus, lost[0])
        missing = gone


def refuse_growth(bus: Bus, before: Mapping[str, int], now: Mapping[str, int]) -> None:
    """Raise :class:`TopicGrown` for the first topic with more partitions than before."""
    for name, count in before.items():
        if now.get(name, count) > count:
            raise TopicGrown(
                f"topic {bus.prefix}{name} was given partitions during the run ({count} before, {now[name]} now): the "
                "rollouts of a task, and so of a group, would no longer come to one place. Kafka can't take partitions "
                "away: go on as a new run (another bus.prefix), with as many partitions from its start"
            )


def remade_error(bus: Bus, name: str) -> TopicRecreated:
    """Return the error for a recreated topic."""
    return TopicRecreated(
        f"topic {bus.prefix}{name} was deleted and created again while this process used it: its records are gone. "
        "No action is needed: the process restarts and reads the topic from its beginning, and lost orders are "
        "ordered again"
    )


def gone_error(bus: Bus, name: str) -> ServiceUnavailable:
    """Return the error for a deleted topic."""
    return ServiceUnavailable(
        f"topic {bus.prefix}{name} is gone from the broker at {bus.servers}: it was deleted with its records. "
        "Create it again with `dart-streams topics apply`; running processes continue with it"
    )
