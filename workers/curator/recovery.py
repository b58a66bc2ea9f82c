"""What the topics still know of an agent whose table is empty."""

import asyncio
import contextlib

from aiokafka import ConsumerRecord

from dart_streams.bus.clients import Publisher, event_of
from dart_streams.bus.codec import Undecodable
from dart_streams.bus.topic_reader import read_to_end, reading
from dart_streams.curation.journal import Input
from dart_streams.curation.rebuild import RebuiltState, rebuild
from dart_streams.curation.reducer import Agent
from topics import Topic, curation_log
from topics.curation_log import Applied

BOUND_S = 600.0


async def recalled(agent: Agent, publisher: Publisher, partition: int | None, last: int) -> RebuiltState | None:
    """Return the state of an agent that the topics tell, None if it has applied nothing yet.

    ``partition`` is the one whose state it is, None if all make one.

    Raises
    ------
    Lost
        If it has applied inputs that the topics no longer hold.
    """
    entries = await logged(agent, publisher, partition)
    if not entries:
        return None
    prefix = publisher.bus.prefix
    inputs = {}
    for record in await everything(publisher, agent.inputs):
        read = input_of(record, prefix)
        inputs[read.topic, read.partition, read.offset] = read
    return rebuild(agent, entries, inputs, last)


async def logged(agent: Agent, publisher: Publisher, partition: int | None) -> list[Applied]:
    """Return what ``curation-log`` has of an agent, in order."""
    entries: list[Applied] = []
    for record in await everything(publisher, (curation_log.TOPIC,)):
        with contextlib.suppress(Undecodable):
            entries.append(event_of(curation_log.TOPIC, record))
    return [
        entry
        for entry in entries
        if entry.agent == agent.name and (partition is None or entry.source.partition == partition)
    ]


async def everything(publisher: Publisher, topics: tuple[Topic, ...]) -> list[ConsumerRecord]:
    """Return all records that topics have now, in order a partition."""
    found: list[ConsumerRecord] = []
    async with asyncio.timeout(BOUND_S), reading(publisher.bus, publisher, topics) as records:
        async for polled in read_to_end(records):
            for batch in polled.values():
                found += batch
    return found


def input_of(record: ConsumerRecord, prefix: str) -> Input:
    """Return a record as an agent's input."""
    return Input(
        topic=record.topic.removeprefix(prefix),
        partition=record.partition,
        offset=record.offset,
        at_ms=record.timestamp,
        key=record.key,
        value=record.value,
        headers=list(record.headers or ()),
    )
