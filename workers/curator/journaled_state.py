"""An agent's state in a Faust table: a journal of applied inputs and a snapshot now and then, for each partition."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import structlog
from aiokafka import ConsumerRecord

from dart_streams.bus.clients import Publisher, event_of, read_to_end, reading
from dart_streams.bus.codec import Undecodable
from dart_streams.curation import journal
from dart_streams.curation.journal import Entry, Input, Restored
from dart_streams.curation.reducer import Agent, InputRecord, ReducerResult
from topics import Topic, curation_log
from topics.curation_log import Applied

SNAPSHOT_BYTES = 256 * 1024
SNAPSHOT_ENTRIES = 1024
REBUILD_S = 600.0

log = structlog.get_logger()


class JournaledState:
    """The state of one partition. ``unpublished`` are the inputs and results that may not have been published."""

    def __init__(self, agent: Agent, table: Any, partition: int, restored: Restored) -> None:
        self.agent = agent
        self.table = table
        self.partition = partition
        self.state = restored.state
        self.sequence = restored.sequence
        self.unpublished = restored.last
        self._slot = restored.entries
        self._bytes = 0
        self._snapshot_at = SNAPSHOT_BYTES

    def apply(self, inputs: Sequence[tuple[Input, InputRecord]]) -> list[tuple[Input, ReducerResult]]:
        """Apply inputs in order; return those that were not applied before, with their results."""
        self.state, steps = journal.apply_all(self.agent, self.state, inputs)
        return [(read, step) for read, step in steps if step.applied is not None]

    async def append(self, before: str, inputs: list[Input]) -> None:
        """Journal a batch that was applied to the state of digest ``before``; return when the broker has it."""
        self.sequence += 1
        entry = journal.encode(Entry(self.sequence, before, inputs))
        await self._write(journal.entry_key(self.partition, self._slot), entry)
        self._slot += 1
        self._bytes += len(entry)

    def is_behind(self) -> bool:
        """Say whether the table has batches of this partition that another curator wrote."""
        return journal.newest(self.table.data, self.partition) > self.sequence

    async def maybe_snapshot(self) -> None:
        """Replace a journal larger than a snapshot by one, so that restoring stays quick."""
        if self._bytes >= self._snapshot_at or self._slot >= SNAPSHOT_ENTRIES:
            await self.snapshot()

    async def snapshot(self) -> None:
        """Replace the journal by a snapshot, unless nothing has changed since the last one."""
        if not self._slot:
            return
        snapshot = journal.encode(journal.snapshot_of(self.sequence, self.state))
        await self._write(journal.snapshot_key(self.partition), snapshot)
        self._slot = self._bytes = 0
        self._snapshot_at = max(SNAPSHOT_BYTES, 2 * len(snapshot))

    async def _write(self, key: bytes, value: bytes) -> None:
        """Set a key of the table and return when its changelog has it."""
        sent = self.table.send_changelog(self.partition, key, value)
        self.table.data[key] = value
        await sent


async def open_state(
    agent: Agent, table: Any, partition: int, publisher: Publisher, *, one_state: bool, last: int
) -> JournaledState:
    """Return the state of a partition, restored from the table.

    An empty table is that of a new run, or its changelog was lost: then the state is rebuilt from the topics, with the
    ``last`` inputs taken as unpublished.

    Raises MissingInputs if the table is empty and the topics no longer hold all inputs that the agent has applied.
    """
    bound_log = log.bind(agent=agent.name, partition=partition)
    restored = journal.restore(agent, table.data, partition)
    bound_log.info("state restored", batches=restored.sequence, since_snapshot=restored.entries)
    if restored.diverged is not None:
        bound_log.warning(
            "the journal gave another state than when it was written",
            batch=restored.diverged,
            reason="the curation settings have changed since, or two curators wrote at the same time",
        )
    state = JournaledState(agent, table, partition, restored)
    if restored.sequence:
        return state
    entries = await logged(agent, publisher, None if one_state else partition)
    if entries:
        rebuilt = journal.rebuild(agent, entries, await inputs_of(agent, publisher), last)
        bound_log.warning("journal lost: state rebuilt from the topics", differs_from=rebuilt.diverged)
        state = JournaledState(agent, table, partition, rebuilt)
        await state.snapshot()
    return state


async def logged(agent: Agent, publisher: Publisher, partition: int | None) -> list[Applied]:
    """Return an agent's entries of ``curation-log``, in order; those of one partition's inputs unless it is None."""
    entries: list[Applied] = []
    for record in await read_all(publisher, (curation_log.TOPIC,)):
        with contextlib.suppress(Undecodable):
            entry: Applied = event_of(curation_log.TOPIC, record)
            if entry.agent == agent.name and partition in (None, entry.source.partition):
                entries.append(entry)
    return entries


async def inputs_of(agent: Agent, publisher: Publisher) -> dict[journal.Place, Input]:
    """Return every record that the agent's input topics hold."""
    prefix = publisher.bus.prefix
    return {
        (record.topic.removeprefix(prefix), record.partition, record.offset): input_of(record, prefix, record.timestamp)
        for record in await read_all(publisher, agent.inputs)
    }


async def read_all(publisher: Publisher, topics: tuple[Topic, ...]) -> list[ConsumerRecord]:
    """Return all records that topics have now, in order within a partition."""
    async with asyncio.timeout(REBUILD_S), reading(publisher.bus, publisher, topics) as records:
        return [record async for polled in read_to_end(records) for batch in polled.values() for record in batch]


def input_of(record: Any, prefix: str, at_ms: int) -> Input:
    """Return a record, or Faust's message of one, as an agent's input; ``at_ms`` is its timestamp (epoch ms).

    Headers without a value are left out: a journal with one could not be read again.
    """
    return Input(
        topic=record.topic.removeprefix(prefix),
        partition=record.partition,
        offset=record.offset,
        at_ms=at_ms,
        key=record.key,
        value=record.value,
        headers=[(name, value) for name, value in record.headers or () if value is not None],
    )
