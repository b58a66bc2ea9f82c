"""Processing of an agent's input: apply, make durable, publish the effects, acknowledge.

While one batch is processed, records queue for the next. Agents that read finished rollouts begin their batches
together, every :data:`BATCH_INTERVAL_S` at most, so that their records share requests. A batch costs two round trips,
in these steps (:meth:`AgentRunner.process`):

1. Decode the records; dead-letter undecodable ones.
2. Apply them to the state in memory, in order of arrival; skip those applied before.
3. Journal them in the table as one record; wait until the broker has it, and no other curator claimed the partition
   before it (:mod:`workers.curator.journal_writer`).
4. Publish the decisions and their curation-log entries; wait until the broker has them.
5. Acknowledge the records, so that Faust commits their offsets; replace a long journal by a snapshot.

Faust commits offsets, tables and published records independently, so a kill leaves them inconsistent. Killed before the
end of 3: no effect is visible, and the records are redelivered, perhaps in another order across topics. Killed in 4:
the restored state includes the journaled batch, and its decisions, recomputed from the same inputs in the same order,
are published (again) first. Killed in 5: the redelivered records are recognized by their offsets. A decision published
twice has the same id and content, and its reader ignores the second.

A frozen curator may wake up after another has taken its partitions. In 1 to 3 its batch does not count, nothing is
published, and its process ends; while idle it finds the claim of a replacement when the group accepts it again
(:meth:`AgentRunner.keep_watch`). In 4 the batch preceded the claim, so the other curator publishes the same decisions.
In 5 the group refuses its offsets.

A consumer that rejoins its group may skip records. They are read from the topic before the next input of the partition
(:meth:`AgentRunner._make_up`).

Effects before state would be wrong: dispatch reads three topics, and their order may change after a crash, so that an
ordered group would become another task's.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec
import structlog
from faust.types import TP
from opentelemetry import metrics

import topics
from dart_streams import crash_points
from dart_streams.bus import dead_letters
from dart_streams.bus.clients import Publisher, SendCoalescer
from dart_streams.bus.codec import Encoded, Undecodable, Unencodable, encode
from dart_streams.curation import feedback, groups
from dart_streams.curation.journal import JournalInput, record_of
from dart_streams.curation.reducer import Agent, InputRecord, ReducerResult
from dart_streams.telemetry import names, spans
from dart_streams.telemetry.instruments import create_counter, create_histogram
from dart_streams.telemetry.spans import ActiveSpan
from dart_streams.telemetry.stall_detector import StallDetector
from topics import curation_log
from topics.curated import CuratedGroup
from topics.curation_log import Source
from workers.curator.input_queue import MAX_BATCH, InputQueue, split_batches
from workers.curator.journal_writer import Changelog, OwnershipLost, Replaced
from workers.curator.journaled_state import JournaledState, decodable_inputs, input_of, open_state

BATCH_INTERVAL_S = 0.2
"""Minimum interval between batches of finished rollouts, unless a queue is full: larger batches cost less per
record."""
LATER_BATCH_INTERVAL_S = 0.05
"""Minimum interval of later agents. Their input arrives in bursts already, and a finished rollout passes three agents
before it is replaced."""
TRACE = frozenset({"traceparent", "tracestate"})
"""Headers of the W3C trace context: a decision continues the trace of its cause."""

log = structlog.get_logger()


class AgentRunner:
    """Runs one agent over Kafka. With ``one_state`` all partitions share a state, else each has one.

    Agents that share a ``pace`` begin their batches together.
    """

    def __init__(
        self,
        agent: Agent,
        changelog: Changelog,
        publisher: Publisher,
        pace: SendCoalescer,
        stall_s: float,
        *,
        one_state: bool,
    ) -> None:
        self.agent = agent
        self.changelog = changelog
        self.publisher = publisher
        self.pace = pace
        self.one_state = one_state
        self.stalls = StallDetector(log, " or ".join(topic.name for topic in agent.inputs), stall_s)
        self.prefix = publisher.bus.prefix
        self.states: dict[int, JournaledState] = {}
        self.queue = InputQueue()
        self.processing = asyncio.Lock()
        self.assigned = asyncio.Event()
        self.topic_ids: Mapping[str, str] = {}
        """The broker's ids of the inputs, taken before any was read."""
        meter = metrics.get_meter(names.METER)
        self.events = create_counter(meter, names.CURATOR_EVENTS)
        self.decisions = create_counter(meter, names.CURATOR_DECISIONS)
        self.fates = {
            groups.NAME: create_counter(meter, names.CURATOR_GROUPS),
            feedback.NAME: create_counter(meter, names.CURATOR_FEEDBACK),
        }
        """Counters of the agents whose state counts what became of their input."""
        self.apply_ms = create_histogram(meter, names.CURATOR_APPLY_MS)

    async def run(self) -> None:
        """Process batch after batch, until cancelled."""
        while True:
            batch = await self.queue.next_batch(self.pace)
            self.stalls.check()
            async with self.processing:
                for partition in dict.fromkeys(self._partition(event) for event in batch):
                    events = [event for event in batch if self._partition(event) == partition]
                    await self.process_owned(partition, events)

    async def process_owned(self, partition: int, events: Sequence[Any]) -> None:
        """Process records of one partition; drop them if a rebalance reassigned it.

        Raises OwnershipLost if another curator claimed the partition without a rebalance noticed here, or a replacement
        did.
        """
        # Older ones, read before the last rebalance, are redelivered.
        if current := [event for event in events if event.message.generation_id == self.generation()]:
            async with self._handing_over(partition):
                await self.process(await self._state(partition), current)

    @contextlib.asynccontextmanager
    async def _handing_over(self, partition: int) -> AsyncIterator[None]:
        """Forget a partition that another curator has claimed; raise as :meth:`process_owned` does."""
        generation = self.generation()
        try:
            yield
        except OwnershipLost as lost:
            self.states.pop(partition, None)
            if isinstance(lost, Replaced) or generation == self.generation():
                raise
            log.info("partition handed over", agent=self.agent.name, partition=partition, reason=str(lost))

    async def published_state(self, *, check: bool = False) -> Any:
        """Return the single state with all decisions published; None if this process does not own it.

        ``check`` looks for claims of other curators first. Raises as :meth:`process_owned` does.
        """
        async with self.processing:
            if not self.is_settled():
                return None
            async with self._handing_over(0):
                journaled = await self._state(0)
                if check:
                    await journaled.refuse_former_owner()
                return journaled.state
        return None

    def is_settled(self) -> bool:
        """Return whether this process has the inputs, without a rebalance or recovery in progress."""
        app = self.changelog.table.app
        wanted = {TP(self.prefix + topic.name, 0) for topic in self.agent.inputs}
        return not (app.rebalancing or app.in_recovery) and wanted <= app.consumer.assignment()

    async def keep_watch(self) -> None:
        """Check for a replacement's claim at each assignment of partitions; raise Replaced.

        Writes find it too; without any, both processes would alternate in the group.
        """
        while True:
            await self.assigned.wait()
            self.assigned.clear()
            async with self.processing:
                for partition in self.states:
                    await self.changelog.refuse_replaced(partition)

    async def drain(self) -> None:
        """Wait for the current batch, begin no other, and write snapshots of the owned partitions.

        Raises OwnershipLost if another curator claimed a partition without a rebalance noticed here.
        """
        await self.processing.acquire()
        for state in self.states.values():
            if state.generation == self.generation():
                await state.snapshot()

    def generation(self) -> int:
        """Return the consumer group's generation known to this process."""
        return int(self.changelog.table.app.consumer_generation_id)

    async def process(self, journaled: JournaledState, events: Sequence[Any]) -> None:
        """Process records of one partition, each after those that the consumer skipped before it."""
        batch: list[Any] = []
        for event in events:
            topic = event.message.topic.removeprefix(self.prefix)
            if missing := journaled.passed_over(topic, event.message.partition, event.message.offset):
                await self._process_batch(journaled, batch)
                batch = []
                await self._make_up(journaled, event.message, missing)
            batch.append(event)
        await self._process_batch(journaled, batch)

    async def _process_batch(self, journaled: JournaledState, events: Sequence[Any]) -> None:
        """Take the five steps of this module's docstring."""
        await self._take(journaled, [pair for event in events if (pair := await self._decoded(event)) is not None])
        for event in events:
            event.ack()
        crash_points.reach("curator-acknowledged")
        await journaled.maybe_snapshot()

    async def _take(self, journaled: JournaledState, inputs: Sequence[tuple[JournalInput, InputRecord]]) -> None:
        """Apply inputs, journal them, and publish the effects: steps 2 to 4."""
        before = journaled.state.progress.digest
        started = time.perf_counter()
        counts = counts_of(journaled.state)
        steps = journaled.apply(inputs)
        self.apply_ms.record((time.perf_counter() - started) * 1000 / max(1, len(steps)), {"agent": self.agent.name})
        if steps:
            crash_points.reach("curator-applied")
            await journaled.append(before, [read for read, _ in steps])
            crash_points.reach("curator-journaled")
            await self._publish(steps)
            crash_points.reach("curator-published")
            self._count(steps, counts_of(journaled.state) - counts)

    async def _make_up(self, journaled: JournaledState, message: Any, missing: range) -> None:
        """Take the inputs with these offsets from the topic; compaction leaves none.

        After a rebalance Faust may deliver records fetched before its seek, and the sought ones would then look
        applied.
        """
        records = await self.changelog.read_from(message.topic, message.partition, missing.start, missing.stop)
        begin = records[0].offset if records else missing.stop
        if begin > missing.start:
            gone = f"{message.topic}[{message.partition}]@{missing.start} to {begin - 1}"
            effect = "lost orders are ordered again"
            log.warning("inputs gone: the topic begins later", agent=self.agent.name, records=gone, effect=effect)
        inputs = decodable_inputs(records, self.prefix)
        if inputs:
            first = f"{message.topic}[{message.partition}]@{inputs[0][0].offset}"
            log.warning(
                "inputs passed over: read from the topic", agent=self.agent.name, first=first, inputs=len(inputs)
            )
        for batch in split_batches(inputs):
            await self._take(journaled, batch)

    def _partition(self, event: Any) -> int:
        return 0 if self.one_state else event.message.partition

    async def _state(self, partition: int) -> JournaledState:
        """Return a partition's state, claimed again after a rebalance, with all decisions published."""
        state = self.states.get(partition)
        if state is None or state.generation != self.generation():
            state = await open_state(
                self.agent, self.changelog, partition, self.publisher, one_state=self.one_state, last=MAX_BATCH
            )
            await self._publish(state.unpublished)
            if anew := await state.note_topic_ids(self.topic_ids):
                log.warning(
                    "topics recreated: read from their beginning",
                    agent=self.agent.name,
                    topics=anew,
                    effect="their records are gone; lost orders are ordered again",
                )
            self.states[partition] = state
        return state

    async def _decoded(self, event: Any) -> tuple[JournalInput, InputRecord] | None:
        """Return a record as input; dead-letter it and return None if it is no event of its topic."""
        read = input_of(event.message, self.prefix, round(event.message.timestamp * 1000))
        try:
            return read, record_of(read)
        except Undecodable as error:
            await self._dead_letter(read, str(error))
            return None

    async def _dead_letter(self, read: JournalInput, reason: str) -> None:
        original: Any = msgspec.structs.replace(read, topic=self.prefix + read.topic)
        await dead_letters.send(self.publisher, topics.BY_NAME[read.topic], original, reason)

    async def _dead_letter_earlier(self, source: Source, event: Any) -> None:
        """Send an earlier input to the dead letters, with the event's reason, unless the topic has lost it."""
        topic = self.prefix + source.topic
        for record in await self.changelog.read_from(topic, source.partition, source.offset, source.offset + 1):
            await dead_letters.send(self.publisher, topics.BY_NAME[source.topic], record, event.reason)

    async def _publish(self, steps: Sequence[tuple[JournalInput, ReducerResult]]) -> None:
        """Publish decisions and curation-log entries; return once the broker has them all."""
        outbox: dict[str, list[Encoded]] = {}
        for read, step in steps:
            trace = [(name, value) for name, value in read.headers if name in TRACE]
            for decision in step.decisions:
                if isinstance(decision.event, CuratedGroup):
                    trace_group(self.publisher.bus.run, decision.event)
                try:
                    record = encode(decision.topic, decision.event, trace, decision.id)
                except Unencodable as error:
                    await self._dead_letter(read, f"decision {decision.id}: {error}")
                    continue
                outbox.setdefault(decision.topic.name, []).append(record)
                if decision.refuses is not None:
                    await self._dead_letter_earlier(decision.refuses, decision.event)
            if step.applied is not None:
                name = f"{self.agent.name}/{read.topic}/{read.partition}/{read.offset}"
                record = encode(curation_log.TOPIC, step.applied, trace, name)
                outbox.setdefault(curation_log.TOPIC.name, []).append(record)
            if step.refused:
                await self._dead_letter(read, step.refused)
        await asyncio.gather(*(self.publisher.send_all(name, records) for name, records in outbox.items()))

    def _count(self, steps: Sequence[tuple[JournalInput, ReducerResult]], fates: Mapping[str, int]) -> None:
        self.stalls.note_arrival(steps[-1][0].topic)
        self.events.add(len(steps), {"agent": self.agent.name})
        if decisions := sum(len(step.decisions) for _, step in steps):
            self.decisions.add(decisions, {"agent": self.agent.name, "kind": self.agent.outputs[0].name})
        for fate, number in fates.items():
            self.fates[self.agent.name].add(number, {"fate": fate})


def trace_group(run: str, group: CuratedGroup) -> None:
    """Record a span of a curated group, linked to its trajectories."""
    ActiveSpan(
        names.SPAN_GROUP,
        ids=spans.group_span(run, group.group_id),
        parent=spans.ROOT,
        links=[spans.trajectory_span(member.trajectory_id) for member in group.members],
        attributes={names.ATTR_GROUP: group.group_id, names.ATTR_TASK: group.task_id},
    ).end()


def counts_of(state: Any) -> Counter[str]:
    """Return a state's counts; the agents with a counter of fates have some."""
    return Counter(msgspec.structs.asdict(state.counts)) if hasattr(state, "counts") else Counter()
