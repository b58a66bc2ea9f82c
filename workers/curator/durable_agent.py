"""The steps of an agent: read a batch of its stream, fold it, journal it, publish the effects, acknowledge it."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec
import structlog
from faust import Stream
from faust.types import ChannelT, EventT
from opentelemetry import metrics

import topics
from dart_streams import crash_points
from dart_streams.bus import dead_letters
from dart_streams.bus.clients import Publisher, SendCoalescer
from dart_streams.bus.codec import Encoded, Undecodable, Unencodable, encode, header_bytes
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
from workers.curator.changelogs import MAX_RECORD_BYTES
from workers.curator.decision_spans import trace_decisions
from workers.curator.journal_writer import Changelog, OwnershipLost, Replaced
from workers.curator.journaled_state import JournaledState, decodable_inputs, input_of, open_state

MAX_BATCH = 512
"""Maximum records of a batch, and of a stream's buffer."""
MAX_ENTRY_BYTES = MAX_RECORD_BYTES // 4
"""Bytes that complete a batch; its last record may be large."""
TRACE = frozenset({"traceparent", "tracestate"})
"""Headers of the W3C trace context: a decision continues the trace of its cause."""

log = structlog.get_logger()

Input = tuple[JournalInput, InputRecord]


class AgentBatch(NamedTuple):
    """Inputs of one partition that share a journal entry, and Faust's events to acknowledge with them."""

    partition: int
    state: JournaledState
    inputs: list[Input]
    events: list[EventT]


class Decided(NamedTuple):
    """What a batch changed: its new inputs with their results, the digest ``before``, and counts of their fates."""

    before: str
    steps: Sequence[tuple[JournalInput, ReducerResult]]
    fates: Mapping[str, int]


class DurableAgent:
    """The durable part of one agent. With ``one_state`` all partitions share a state, else each has one.

    Agents that share a ``pace`` begin their batches together.
    """

    publisher: Publisher
    topic_ids: Mapping[str, str]
    """The broker's ids of the inputs, taken before any was read."""

    def __init__(
        self, reducer: Agent, changelog: Changelog, pace: SendCoalescer, stall_s: float, prefix: str, *, one_state: bool
    ) -> None:
        self.reducer = reducer
        self.changelog = changelog
        self.pace = pace
        self.prefix = prefix
        self.one_state = one_state
        self.stalls = StallDetector(log, " or ".join(topic.name for topic in reducer.inputs), stall_s)
        self.states: dict[int, JournaledState] = {}
        self.processing = asyncio.Lock()
        """Held while a batch is processed, and for good if that fails: no snapshot has what is not journaled."""
        self.assigned = asyncio.Event()
        meter = metrics.get_meter(names.METER)
        self.events = create_counter(meter, names.CURATOR_EVENTS)
        self.decisions = create_counter(meter, names.CURATOR_DECISIONS)
        self.fates = {
            groups.NAME: create_counter(meter, names.CURATOR_GROUPS),
            feedback.NAME: create_counter(meter, names.CURATOR_FEEDBACK),
        }
        """Counters of the agents whose state counts what became of their input."""
        self.apply_ms = create_histogram(meter, names.CURATOR_APPLY_MS)

    def connect(self, publisher: Publisher, topic_ids: Mapping[str, str]) -> None:
        """Publish by ``publisher`` from now on."""
        self.publisher, self.topic_ids = publisher, topic_ids

    async def read(self, stream: Stream[Any]) -> AsyncIterator[AgentBatch]:
        """Step 1: yield the records of a stream in batches, which the caller acknowledges; drop a lost partition's.

        A lone record is a batch at once; under load a batch is all that came until the ``pace`` began it, since larger
        batches cost less per record. Those that come meanwhile wait in the stream's buffer. ``noack_take`` would delay
        each record by its time-out, and bounds no bytes.
        """
        queue, events = cast(ChannelT[Any], stream.channel).queue, stream.noack().events()
        async for event in events:
            came, size = [event], size_of(event.message)
            await self.pace.wait()
            while len(came) < MAX_BATCH and size < MAX_ENTRY_BYTES and not queue.empty():
                if (event := await anext(events, None)) is None:
                    break
                came.append(event)
                size += size_of(event.message)
            await self.processing.acquire()
            for partition in dict.fromkeys(self._partition(event) for event in came):
                async for batch in self._batches(partition, came):
                    yield batch
            self.processing.release()

    def fold(self, batch: AgentBatch) -> Decided:
        """Step 2: apply a batch to the state in memory by the pure reducer; skip inputs that were applied before."""
        before, counts = batch.state.state.progress.digest, counts_of(batch.state.state)
        started = time.perf_counter()
        steps = batch.state.apply(batch.inputs)
        self.apply_ms.record((time.perf_counter() - started) * 1000 / max(1, len(steps)), {"agent": self.reducer.name})
        if steps:
            crash_points.reach("curator-applied")
        return Decided(before, steps, counts_of(batch.state.state) - counts)

    async def journal(self, batch: AgentBatch, decided: Decided) -> bool:
        """Step 3: write a batch as one record of the table; return whether it counts.

        It does unless another curator has claimed the partition before it. Raises OwnershipLost if that happened
        without a rebalance here, or if a replacement did so.
        """
        if decided.steps:
            async with self._handing_over(batch.partition):
                await batch.state.append(decided.before, [read for read, _ in decided.steps])
            crash_points.reach("curator-journaled")
        return self._owns(batch)

    async def publish(self, decided: Decided) -> None:
        """Step 4: publish decisions and curation-log entries; return once the broker has them all."""
        if not (steps := decided.steps):
            return
        await self._publish(steps)
        crash_points.reach("curator-published")
        self.stalls.note_arrival(steps[-1][0].topic)
        self.events.add(len(steps), {"agent": self.reducer.name})
        if decisions := sum(len(step.decisions) for _, step in steps):
            self.decisions.add(decisions, {"agent": self.reducer.name, "kind": self.reducer.outputs[0].name})
        for fate, number in decided.fates.items():
            self.fates[self.reducer.name].add(number, {"fate": fate})

    async def acknowledge(self, batch: AgentBatch) -> None:
        """Step 5: let Faust commit the offsets of a batch; replace a long journal by a snapshot."""
        for event in batch.events:
            event.ack()
        crash_points.reach("curator-acknowledged")
        async with self._handing_over(batch.partition):
            await batch.state.maybe_snapshot()

    async def published_states(self, *, check: bool = False) -> list[Any]:
        """Return the states of the partitions that this process owns, with all decisions published.

        ``check`` looks for claims of other curators first. Raises as :meth:`journal` does.
        """
        async with self.processing:
            states = []
            for partition in self.settled_partitions():
                async with self._handing_over(partition):
                    journaled = await self.owned_state(partition)
                    if check:
                        await journaled.refuse_former_owner()
                    states.append(journaled.state)
        return states

    def settled_partitions(self) -> set[int]:
        """Return the partitions of which this process has all inputs; none during a rebalance or recovery."""
        app, names = self.changelog.table.app, [self.prefix + topic.name for topic in self.reducer.inputs]
        if app.rebalancing or app.in_recovery:
            return set()
        return set.intersection(*({tp.partition for tp in app.consumer.assignment() if tp.topic == n} for n in names))

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

    async def owned_state(self, partition: int) -> JournaledState:
        """Return a partition's state, claimed again after a rebalance, with all decisions published."""
        state = self.states.get(partition)
        if state is None or state.generation != self.generation():
            state = await open_state(
                self.reducer, self.changelog, partition, self.publisher, one_state=self.one_state, last=MAX_BATCH
            )
            await self._publish(state.unpublished)
            if anew := await state.note_topic_ids(self.topic_ids):
                log.warning(
                    "topics recreated: read from their beginning",
                    agent=self.reducer.name,
                    topics=anew,
                    effect="their records are gone; lost orders are ordered again",
                )
            self.states[partition] = state
        return state

    @contextlib.asynccontextmanager
    async def _handing_over(self, partition: int) -> AsyncIterator[None]:
        """Forget a partition that another curator has claimed; raise as :meth:`journal` does."""
        generation = self.generation()
        try:
            yield
        except OwnershipLost as lost:
            self.states.pop(partition, None)
            if isinstance(lost, Replaced) or generation == self.generation():
                raise
            log.info("partition handed over", agent=self.reducer.name, partition=partition, reason=str(lost))

    async def _batches(self, partition: int, came: Sequence[EventT]) -> AsyncIterator[AgentBatch]:
        """Yield a partition's records, each after those that the consumer skipped before it."""
        # Older ones, read before the last rebalance, are redelivered.
        own = [e for e in came if self._partition(e) == partition and e.message.generation_id == self.generation()]
        if not own:
            return
        async with self._handing_over(partition):
            await self.owned_state(partition)
        if (state := self.states.get(partition)) is None:
            return
        batch = AgentBatch(partition, state, [], [])
        for event in own:
            topic = event.message.topic.removeprefix(self.prefix)
            if missing := state.passed_over(topic, event.message.partition, event.message.offset):
                skipped = split_batches(await self._skipped(event, missing))
                for part in (batch, *(AgentBatch(partition, state, inputs, []) for inputs in skipped)):
                    if self._owns(part):
                        yield part
                batch = AgentBatch(partition, state, [], [])
            batch.events.append(event)
            batch.inputs.extend(await self._decoded(event))
        if self._owns(batch):
            yield batch

    def _owns(self, batch: AgentBatch) -> bool:
        return self.states.get(batch.partition) is batch.state

    def _partition(self, event: EventT) -> int:
        return 0 if self.one_state else event.message.partition

    async def _skipped(self, event: EventT, missing: range) -> list[Input]:
        """Return the inputs with these offsets from the topic; compaction leaves none.

        After a rebalance Faust may deliver records fetched before its seek, and the sought ones would then look
        applied.
        """
        place = f"{event.message.topic}[{event.message.partition}]"
        records = await self.changelog.read_from(
            event.message.topic, event.message.partition, missing.start, missing.stop
        )
        begin = records[0].offset if records else missing.stop
        if begin > missing.start:
            gone, effect = f"{place}@{missing.start} to {begin - 1}", "lost orders are ordered again"
            log.warning("inputs gone: the topic begins later", agent=self.reducer.name, records=gone, effect=effect)
        inputs = decodable_inputs(records, self.prefix)
        if inputs:
            first, name = f"{place}@{inputs[0][0].offset}", self.reducer.name
            log.warning("inputs passed over: read from the topic", agent=name, first=first, inputs=len(inputs))
        return inputs

    async def _decoded(self, event: EventT) -> list[Input]:
        """Return a record as input; dead-letter it and return none if it is no event of its topic."""
        read = input_of(event.message, self.prefix, round(event.message.timestamp * 1000))
        try:
            return [(read, record_of(read))]
        except Undecodable as error:
            await self._dead_letter(read, str(error))
            return []

    async def _dead_letter(self, read: JournalInput, reason: str) -> None:
        original: Any = msgspec.structs.replace(read, topic=self.prefix + read.topic)
        await dead_letters.send(self.publisher, topics.BY_NAME[read.topic], original, reason)

    async def _dead_letter_earlier(self, source: Source, reason: str) -> None:
        """Send an earlier input to the dead letters, unless the topic has lost it."""
        topic = self.prefix + source.topic
        for record in await self.changelog.read_from(topic, source.partition, source.offset, source.offset + 1):
            await dead_letters.send(self.publisher, topics.BY_NAME[source.topic], record, reason)

    async def _publish(self, steps: Sequence[tuple[JournalInput, ReducerResult]]) -> None:
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
            for refusal in step.refusals:
                await self._dead_letter_earlier(*refusal)
            if step.applied is not None:
                name = f"{self.reducer.name}/{read.topic}/{read.partition}/{read.offset}"
                record = encode(curation_log.TOPIC, step.applied, trace, name)
                outbox.setdefault(curation_log.TOPIC.name, []).append(record)
            if step.refused:
                await self._dead_letter(read, step.refused)
        await asyncio.gather(*(self.publisher.send_all(name, records) for name, records in outbox.items()))
        trace_decisions(self.publisher.bus.prefix, self.reducer.name, (read for read, _ in steps))


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


def size_of(record: Any) -> int:
    """Return the size of a record in the journal (bytes)."""
    return len(record.key or b"") + len(record.value or b"") + header_bytes(record.headers or ())


def split_batches(inputs: Sequence[Input]) -> Iterator[list[Input]]:
    """Yield inputs in order, in batches that fit into one journal entry."""
    batch: list[Input] = []
    size = 0
    for read, record in inputs:
        if batch and (len(batch) == MAX_BATCH or size >= MAX_ENTRY_BYTES):
            yield batch
            batch, size = [], 0
        batch.append((read, record))
        size += size_of(read)
    if batch:
        yield batch
