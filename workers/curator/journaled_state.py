"""An agent's state in a Faust table: a journal of applied inputs and occasional snapshots, by partition."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from aiokafka import ConsumerRecord

from dart_streams.bus.clients import Publisher, event_of, open_topics, read_to_end
from dart_streams.bus.codec import Undecodable
from dart_streams.curation import journal, reducer
from dart_streams.curation.changelog import entry_key, part_key, snapshot_key
from dart_streams.curation.journal import Entry, JournalGap, JournalInput, RestoredState, Snapshot
from dart_streams.curation.reducer import Agent, InputRecord, ReducerResult
from topics import Topic, curation_log
from topics.curation_log import Applied
from workers.curator.journal_writer import Changelog, JournalWriter

SNAPSHOT_BYTES = 256 * 1024
SNAPSHOT_ENTRIES = 1024
REBUILD_TIMEOUT_S = 600.0

log = structlog.get_logger()


class JournaledState:
    """The state of a partition owned by this process, claimed in ``generation`` of the consumer group.

    ``unpublished`` are inputs and results whose decisions may not have been published.
    """

    def __init__(self, agent: Agent, writer: JournalWriter, restored: RestoredState, generation: int) -> None:
        self.agent = agent
        self.writer = writer
        self.generation = generation
        self.state = restored.state
        self.sequence = restored.sequence
        self.unpublished = restored.last
        self.seen: dict[str, int] = {}
        """Last offset that arrived by input partition, undecodable records included."""
        self._slot = self._bytes = self._snapshots = 0
        self._snapshot_at = SNAPSHOT_BYTES

    def passed_over(self, topic: str, partition: int, offset: int) -> range:
        """Note an arriving input; return the offsets before it that neither were applied nor arrived."""
        place = f"{topic}/{partition}"
        last = max(self.state.progress.applied.get(place, -1), self.seen.get(place, -1))
        self.seen[place] = max(last, offset)
        return range(last + 1, offset)

    def apply(self, inputs: Sequence[tuple[JournalInput, InputRecord]]) -> list[tuple[JournalInput, ReducerResult]]:
        """Apply inputs in order; return the new ones with their results."""
        self.state, steps = journal.apply_all(self.agent, self.state, inputs)
        return [(read, step) for read, step in steps if step.applied is not None]

    async def append(self, before: str, inputs: list[JournalInput]) -> None:
        """Journal a batch applied to the state of digest ``before``; return once it counts.

        Raises OwnershipLost if it does not; then none of its decisions may be published.
        """
        self.sequence += 1
        entry = journal.encode(Entry(self.sequence, before, inputs))
        await self.writer.write(entry_key(self.writer.partition, self.writer.incarnation, self._slot), entry)
        self._slot += 1
        self._bytes += len(entry)

    async def note_topic_ids(self, topic_ids: Mapping[str, str]) -> list[str]:
        """Note the ids of the inputs durably; return the recreated inputs."""
        known = dict(self.state.progress.topic_ids)
        anew = reducer.note_topic_ids(self.agent, self.state, topic_ids)
        if self.state.progress.topic_ids != known:
            await self.write(journal.snapshot_of(self.sequence, self.state))
        return anew

    async def refuse_former_owner(self) -> None:
        """Raise OwnershipLost if another curator has claimed the partition."""
        await self.writer.changelog.read_on(self.writer.partition)
        self.writer.check()

    async def maybe_snapshot(self) -> None:
        """Replace a journal larger than a snapshot, so that restoring stays fast."""
        if self._bytes >= self._snapshot_at or self._slot >= SNAPSHOT_ENTRIES:
            await self.snapshot()

    async def snapshot(self) -> None:
        """Replace the journal by a snapshot, unless nothing has changed."""
        if self._slot:
            await self.write(journal.snapshot_of(self.sequence, self.state))

    async def write(self, snapshot: Snapshot) -> None:
        """Write a snapshot, which replaces all entries so far."""
        parts, last = journal.split_snapshot(snapshot, self._snapshots)
        owner = (self.writer.partition, self.writer.incarnation)
        for number, part in parts.items():
            await self.writer.write(part_key(*owner, number), part)
        await self.writer.write(snapshot_key(*owner), last)
        self._slot, self._bytes, self._snapshots = 0, 0, self._snapshots + 1
        self._snapshot_at = max(SNAPSHOT_BYTES, 2 * sum(map(len, (*parts.values(), last))))


async def open_state(
    agent: Agent, changelog: Changelog, partition: int, publisher: Publisher, *, one_state: bool, last: int
) -> JournaledState:
    """Claim a partition and return its state, whose unpublished decisions may be published now.

    A new run has an empty journal; an empty or damaged one is rebuilt from the topics, with the ``last`` inputs as
    unpublished. Raises MissingInputs if the topics no longer hold all applied inputs, and OwnershipLost if another
    curator claims the partition meanwhile.
    """
    generation = changelog.table.app.consumer_generation_id
    writer = await changelog.claim(partition)
    restored = await restore_state(agent, writer, publisher, one_state=one_state, last=last)
    state = JournaledState(agent, writer, restored, generation)
    await state.write(restored.snapshot)
    await asyncio.gather(*(writer.write(key, None) for key in writer.view.superseded(writer.incarnation)))
    return state


async def restore_state(
    agent: Agent, writer: JournalWriter, publisher: Publisher, *, one_state: bool, last: int
) -> RestoredState:
    """Return the state of a partition's journal; if that is empty or damaged, of the topics."""
    bound_log = log.bind(agent=agent.name, partition=writer.partition)
    stored, problem, restored = writer.view.stored(), "lost", None
    try:
        restored = restore_journal(agent, stored, writer.partition, bound_log)
    except (JournalGap, Undecodable) as gap:
        problem = f"damaged ({gap})"
    if restored is not None and restored.sequence:
        return restored
    entries = await read_log_entries(agent, publisher, None if one_state else writer.partition)
    if restored is not None and not entries:
        return restored
    _, journaled, _ = journal.read_history(stored, writer.partition)
    rebuilt = journal.rebuild(agent, entries, await read_inputs(agent, publisher), last, journaled)
    bound_log.warning(
        f"journal {problem}: state rebuilt from the topics",
        inputs=len(entries),
        batches_left=len(journaled),
        differs_from=rebuilt.diverged,
    )
    return rebuilt


def restore_journal(agent: Agent, stored: Mapping[bytes, bytes], partition: int, bound_log: Any) -> RestoredState:
    """Return the state of a journal, and log it; raise JournalGap if a batch is missing."""
    restored = journal.restore(agent, stored, partition)
    bound_log.info("state restored", batches=restored.sequence, since_snapshot=restored.entries)
    if restored.diverged is not None:
        bound_log.warning(
            "the journal gave another state than when it was written",
            batch=restored.diverged,
            reason="the curation settings have changed since, or two curators wrote at the same time",
        )
    return restored


async def read_log_entries(agent: Agent, publisher: Publisher, partition: int | None) -> list[Applied]:
    """Return an agent's entries of ``curation-log`` in order, by default of all input partitions."""
    entries: list[Applied] = []
    for record in await read_all(publisher, (curation_log.TOPIC,)):
        with contextlib.suppress(Undecodable):
            entry: Applied = event_of(curation_log.TOPIC, record)
            if entry.agent == agent.name and partition in (None, entry.source.partition):
                entries.append(entry)
    return entries


async def read_inputs(agent: Agent, publisher: Publisher) -> dict[journal.Place, JournalInput]:
    """Return every record of the agent's input topics."""
    prefix = publisher.bus.prefix
    return {
        (record.topic.removeprefix(prefix), record.partition, record.offset): input_of(record, prefix, record.timestamp)
        for record in await read_all(publisher, agent.inputs)
    }


async def read_all(publisher: Publisher, topics: tuple[Topic, ...]) -> list[ConsumerRecord]:
    """Return all present records of topics, in order within a partition."""
    async with asyncio.timeout(REBUILD_TIMEOUT_S), open_topics(publisher.bus, publisher, topics) as records:
        return [record async for polled in read_to_end(records) for batch in polled.values() for record in batch]


def decodable_inputs(records: Sequence[ConsumerRecord], prefix: str) -> list[tuple[JournalInput, InputRecord]]:
    """Return records as inputs, without undecodable ones, which are dead-lettered where they are read."""
    inputs = []
    for record in records:
        read = input_of(record, prefix, record.timestamp)
        with contextlib.suppress(Undecodable):
            inputs.append((read, journal.record_of(read)))
    return inputs


def input_of(record: Any, prefix: str, at_ms: int) -> JournalInput:
    """Return a record, or Faust's message of one, as input; ``at_ms`` is its timestamp (epoch ms).

    Headers without a value are dropped: a journal could not be read again.
    """
    return JournalInput(
        topic=record.topic.removeprefix(prefix),
        partition=record.partition,
        offset=record.offset,
        at_ms=at_ms,
        key=record.key,
        value=record.value,
        headers=[(name, value) for name, value in record.headers or () if value is not None],
    )
