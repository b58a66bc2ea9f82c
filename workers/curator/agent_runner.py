"""What an agent does with what it reads: apply it, make that durable, publish the effects, acknowledge.

Batches form by themselves: while one is being settled, and for a tenth of a second after it began, the next gathers,
so a lone record is settled at once and a flood costs two round trips every so many records. A batch is settled in these
steps (:meth:`AgentRunner.settle`):

1. Decode each record; put aside what does not decode.
2. Apply the records to the state in memory, in the order they arrived; leave out those applied before.
3. Journal them in the table, as one record, and wait until the broker has it. From here on the batch counts.
4. Publish the decisions and what is logged of them, and wait until the broker has them.
5. Acknowledge the records, so that Faust commits their offsets; replace a long journal by a snapshot.

Faust commits offsets apart from its tables and both apart from what is published, so a process killed anywhere leaves
them at odds. Killed before 3 ends: nobody has seen anything of the batch; its records come again, perhaps in another
order across topics, and may be decided on differently. Killed in 4: the journal has the batch, so the state comes back
as of after it, and its decisions, computed again from the same inputs in the same order, are published (again) before
anything else. Killed in 5: the records come again and are recognised by their offsets. A decision published twice has
the same id and content both times, and the agent that reads it ignores the second one.

The other order, effects first and state second, would not do: dispatch reads three topics, and after a crash they may
come in another order, in which the group already ordered would be another task's.
"""

import asyncio
import contextlib
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import structlog
from opentelemetry import metrics

import topics
from dart_streams.bus import dead_letters
from dart_streams.bus.clients import Publisher
from dart_streams.bus.codec import Encoded, Undecodable, encode
from dart_streams.curation.journal import Input, record_of
from dart_streams.curation.reducer import Agent, InputRecord, ReducerResult
from dart_streams.telemetry import names, spans
from dart_streams.telemetry.spans import ActiveSpan
from dart_streams.telemetry.stall_detector import StallDetector
from topics import curation_log
from topics.curated import CuratedGroup
from workers.curator.changelogs import MOST_BYTES
from workers.curator.journaled_state import JournaledState
from workers.curator.recovery import recalled

MOST = 512
"""Records of one batch; as many may wait for the next."""
GAP_S = 0.1
"""Batches begin so far apart, unless there is enough for the next before: larger batches cost less a record."""
LOOK_S = 1.0
TRACE = frozenset({"traceparent", "tracestate"})
"""The headers of the W3C trace context: a decision carries on the trace of the record that caused it."""

log = structlog.get_logger()


class AgentRunner:
    """Carries out one agent over Kafka. With ``one_state`` all partitions make one state, else each has its own."""

    def __init__(self, agent: Agent, table: Any, publisher: Publisher, stall_s: float, *, one_state: bool) -> None:
        self.agent = agent
        self.table = table
        self.publisher = publisher
        self.one_state = one_state
        self.waiting = StallDetector(log, " or ".join(topic.name for topic in agent.inputs), stall_s)
        self.prefix = publisher.bus.prefix
        self.ledgers: dict[int, JournaledState] = {}
        self.gathered: asyncio.Queue[Any] = asyncio.Queue(MOST)
        self.is_full = asyncio.Event()
        meter = metrics.get_meter(names.METER)
        self.events = meter.create_counter(names.CURATOR_EVENTS)
        self.decisions = meter.create_counter(names.CURATOR_DECISIONS)
        self.fates = meter.create_counter(names.CURATOR_GROUPS)
        self.apply_ms = meter.create_histogram(names.CURATOR_APPLY_MS, unit="ms")

    async def gather(self, stream: Any) -> None:
        """Take what Faust reads, and leave it unacknowledged. This is the Faust agent."""
        async for event in stream.noack().events():
            await self.gathered.put(event)
            if self.gathered.full():
                self.is_full.set()

    async def settle_for_ever(self, stop: asyncio.Event) -> None:
        """Settle what was gathered, batch by batch, until ``stop`` is set; then leave snapshots."""
        began_s = -math.inf
        while not stop.is_set():
            await self._linger(began_s + GAP_S - time.monotonic())
            batch = [event for event in await self._next_batch() if self._is_ours(event)]
            began_s = time.monotonic() if batch and self.gathered.empty() else -math.inf
            for partition in dict.fromkeys(self._partition(event) for event in batch):
                events = [event for event in batch if self._partition(event) == partition]
                await self.settle(await self._ledger(partition), events)
        for ledger in self.ledgers.values():
            await ledger.snapshot()

    async def settle(self, ledger: JournaledState, events: Sequence[Any]) -> None:
        """Carry out the five steps of this module's docstring for records of one partition."""
        inputs = [pair for event in events if (pair := await self._decoded(event)) is not None]
        before = ledger.state.progress.digest
        started = time.perf_counter()
        counted = counts_of(ledger.state)
        steps = ledger.apply(inputs)
        self.apply_ms.record((time.perf_counter() - started) * 1000 / max(1, len(steps)), {"agent": self.agent.name})
        if steps:
            await ledger.record(before, [read for read, _ in steps])
            await self._publish(steps)
            self._count(steps, counts_of(ledger.state) - counted)
        for event in events:
            event.ack()
        await ledger.maybe_snapshot()

    async def recovered(self) -> None:
        """Drop the ledgers that a table just recovered knows more than: another curator had their partition."""
        for partition, ledger in list(self.ledgers.items()):
            if ledger.is_behind():
                del self.ledgers[partition]

    async def _linger(self, bound_s: float) -> None:
        """Return when the next batch is full, or ``bound_s`` are over."""
        self.is_full.clear()
        if bound_s > 0 and not self.gathered.full():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.is_full.wait(), bound_s)

    async def _next_batch(self) -> list[Any]:
        """Return what was gathered, at least one record unless none comes for a second."""
        try:
            async with asyncio.timeout(LOOK_S):
                batch = [await self.gathered.get()]
        except TimeoutError:
            self.waiting.check()
            return []
        size = size_of(batch[0])
        while len(batch) < MOST and size < MOST_BYTES // 4 and not self.gathered.empty():
            batch.append(self.gathered.get_nowait())
            size += size_of(batch[-1])
        return batch

    def _is_ours(self, event: Any) -> bool:
        """Say whether a record was read since the last rebalance; an older one comes again, here or elsewhere."""
        return bool(event.message.generation_id == self.table.app.consumer_generation_id)

    def _partition(self, event: Any) -> int:
        return 0 if self.one_state else event.message.partition

    async def _ledger(self, partition: int) -> JournaledState:
        """Return a partition's ledger. One just brought back first publishes what may not have been.

        An empty table is that of a new run, or was lost: then the topics tell.
        """
        ledger = self.ledgers.get(partition)
        if ledger is None:
            ledger = JournaledState(self.agent, self.table, partition)
            if not ledger.sequence:
                found = await recalled(self.agent, self.publisher, None if self.one_state else partition, MOST)
                if found is not None:
                    await ledger.adopt(found)
            await self._publish(ledger.unsent)
            self.ledgers[partition] = ledger
        return ledger

    async def _decoded(self, event: Any) -> tuple[Input, InputRecord] | None:
        """Return the input that a record is; put it aside and return None if it is not an event of its topic."""
        message = event.message
        read = Input(
            topic=message.topic.removeprefix(self.prefix),
            partition=message.partition,
            offset=message.offset,
            at_ms=round(message.timestamp * 1000),
            key=message.key,
            value=message.value,
            headers=list(message.headers or ()),
        )
        try:
            return read, record_of(read)
        except Undecodable as error:
            await self._put_aside(read, str(error))
            return None

    async def _put_aside(self, read: Input, why: str) -> None:
        """Send a record to its dead letters."""
        original: Any = msgspec.structs.replace(read, topic=self.prefix + read.topic)
        await dead_letters.send(self.publisher, topics.BY_NAME[read.topic], original, why)

    async def _publish(self, steps: Sequence[tuple[Input, ReducerResult]]) -> None:
        """Publish decisions and what is logged of their inputs; return when the broker has them all."""
        outbox: dict[str, list[Encoded]] = {}
        for read, step in steps:
            trace = [(name, value) for name, value in read.headers if name in TRACE]
            for decision in step.decisions:
                if isinstance(decision.event, CuratedGroup):
                    trace_group(self.publisher.bus.run, decision.event)
                record = encode(decision.topic, decision.event, trace, decision.id)
                outbox.setdefault(decision.topic.name, []).append(record)
            if step.applied is not None:
                name = f"{self.agent.name}/{read.topic}/{read.partition}/{read.offset}"
                record = encode(curation_log.TOPIC, step.applied, trace, name)
                outbox.setdefault(curation_log.TOPIC.name, []).append(record)
            if step.refused:
                await self._put_aside(read, step.refused)
        await asyncio.gather(*(self.publisher.send_all(name, records) for name, records in outbox.items()))

    def _count(self, steps: Sequence[tuple[Input, ReducerResult]], fates: Mapping[str, int]) -> None:
        """Count inputs, decisions, and what became of groups."""
        self.waiting.note_arrival(steps[-1][0].topic)
        self.events.add(len(steps), {"agent": self.agent.name})
        made = sum(len(step.decisions) for _, step in steps)
        if made:
            self.decisions.add(made, {"agent": self.agent.name, "kind": self.agent.outputs[0].name})
        for fate, number in fates.items():
            self.fates.add(number, {"fate": fate})


def trace_group(run: str, group: CuratedGroup) -> None:
    """Leave a span of a curated group that links its trajectories."""
    ActiveSpan(
        names.SPAN_GROUP,
        ids=spans.group(run, group.group_id),
        parent=spans.ROOT,
        links=[spans.trajectory(member.trajectory_id) for member in group.members],
        attributes={names.ATTR_GROUP: group.group_id, names.ATTR_TASK: group.task_id},
    ).end()


def size_of(event: Any) -> int:
    """Return how many bytes a record's value has. A batch has to fit into one record of the journal."""
    return len(event.message.value or b"")


def counts_of(state: Any) -> Counter[str]:
    """Return what a state counts; only the groups agent's counts anything."""
    return Counter(msgspec.structs.asdict(state.counts)) if hasattr(state, "counts") else Counter()
