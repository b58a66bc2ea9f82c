"""The recorder: makes every observation durable, and announces each trajectory once all of its steps are.

=============  ==================================================================================================
consumes       ``observations`` (group ``recorder``)
produces       steps and trajectories (store); then ``trajectories``; ``observations.dlq``
waits for      observations; the database, ``store.wait_s`` at most
unblocked by   environment workers
=============  ==================================================================================================

It needs no state between batches. Observations of a trajectory share a key and arrive in order, so all earlier steps
are in the store at its end, whichever recorder wrote them.

Delivery guarantee: a batch takes four steps, each durable before the next. (1) Write the row of every step. (2) Write
the summary of each ended trajectory; its steps are read back unless this recorder wrote them all. (3) Announce the
trajectories. (4) Commit the offsets of the batch. After a crash before (4) the batch is delivered again, and its
effects, which are idempotent by id, are repeated.
"""

import asyncio
import contextlib
import functools
import time
from collections.abc import Mapping, Sequence

import structlog
from aiokafka import ConsumerRecord, TopicPartition
from opentelemetry import metrics

from dart_streams import crash_points
from dart_streams.bus import dead_letters
from dart_streams.bus.clients import Publisher, event_of
from dart_streams.bus.codec import Undecodable, Unencodable
from dart_streams.bus.log_gaps import LogGaps
from dart_streams.bus.topic_watch import watch_topics
from dart_streams.config import Config
from dart_streams.episodes.trajectory_summary import Incomplete, broken_trajectory, is_whole, summarize
from dart_streams.store import AsyncStore, open_store
from dart_streams.telemetry import names
from dart_streams.telemetry.instruments import ObservedCounter, create_histogram
from dart_streams.telemetry.spans import ROOT, ActiveSpan, UseSpan, context_of, process_attributes, trajectory_span
from topics import observations, trajectories
from topics.observations import Observation
from topics.trajectories import Trajectory
from workers.recorder.written_steps import WrittenSteps
from workers.runtime import lifecycle
from workers.runtime.batch_consumer import BatchConsumer
from workers.runtime.ordered_consumer import Delivery

log = structlog.get_logger()
meter = metrics.get_meter(names.METER)
steps_written = ObservedCounter(meter, names.RECORDER_STEPS)
announced = ObservedCounter(meter, names.RECORDER_TRAJECTORIES)
write_ms = create_histogram(meter, names.RECORDER_WRITE_MS)

GROUP = "recorder"
STEP_ROW = {names.ATTR_DB: "cassandra", names.ATTR_DB_OPERATION: "INSERT", names.ATTR_DB_TABLE: "steps"}
BATCH = 1024
"""Maximum number of observations written concurrently."""
FETCH_MAX_WAIT_MS = 100
FETCH_MIN_BYTES = 64 * 1024
"""A fetch waits for this many bytes or this long, because the database syncs its commit log once a batch."""
MAX_WRITTEN = 4096
"""Maximum number of kept observations of running trajectories; others are read from the store."""
COMMIT_INTERVAL_S = 3.0
"""Minimum interval between commits; the next recorder repeats uncommitted batches without effect."""


async def connect(config: Config, worker_id: str, resources: contextlib.AsyncExitStack) -> lifecycle.Worker:
    """Connect to the broker and the store, and return the worker.

    Raises ServiceUnavailable if the broker or the database does not answer within its bound.
    """
    publisher = await resources.enter_async_context(Publisher(config.bus, worker_id))
    await publisher.partitions_of(observations.TOPIC)
    store = await open_store(config, resources, cache_mb=0)
    writer = ObservationWriter(store, publisher)
    recorder = await resources.enter_async_context(Recorder(config, worker_id, writer))
    log.info("recording")
    used = (observations.TOPIC, trajectories.TOPIC)
    topics = functools.partial(watch_topics, publisher, used, [trajectories.TOPIC])
    return lifecycle.Worker(recorder.serve, {"topics": topics}, recorder.find_lack)


class ObservationWriter:
    """Writes observations to the store and announces trajectories; commits nothing."""

    def __init__(self, store: AsyncStore, publisher: Publisher) -> None:
        self.store = store
        self.publisher = publisher
        self.written = WrittenSteps(MAX_WRITTEN)

    async def write(self, records: Sequence[ConsumerRecord]) -> set[str]:
        """Do steps 1 to 3 for a batch; return its environment hosts."""
        batch = await self._decode(records)
        crash_points.reach("recorder-polled")
        await asyncio.gather(*(self._write_step(item) for item in batch))
        crash_points.reach("recorder-rows")
        ends = {item.event.trajectory_id: item for item in batch if item.event.end is not None}
        finished = await asyncio.gather(*(self._summarize(item) for item in ends.values()))
        # Concurrently, so that they share a request.
        await asyncio.gather(*(self._announce(*each) for each in zip(finished, ends.values(), strict=True)))
        if ends:
            crash_points.reach("recorder-announced")
        return {item.event.env_host for item in batch}

    async def _decode(self, records: Sequence[ConsumerRecord]) -> list[Delivery]:
        batch: list[Delivery] = []
        for record in records:
            try:
                batch.append(Delivery(event_of(observations.TOPIC, record), record))
            except Undecodable as error:
                await dead_letters.send(self.publisher, observations.TOPIC, record, str(error))
        return batch

    async def _write_step(self, item: Delivery) -> None:
        started = time.perf_counter()
        observation: Observation = item.event
        attributes = process_attributes(item.record, f"{self.publisher.bus.prefix}{GROUP}") | STEP_ROW
        attributes |= {names.ATTR_TRAJECTORY: observation.trajectory_id, names.ATTR_STEP: observation.step}
        with ActiveSpan(names.SPAN_RECORD, parent=context_of(item.record.headers), attributes=attributes):
            await self.store.write_step(observation)
        self.written.add(observation)
        write_ms.record((time.perf_counter() - started) * 1000)
        steps_written.add(1)

    async def _announce(self, trajectory: Trajectory, item: Delivery) -> None:
        # The order of a cancelled episode is delivered again, and an announcement would finish it.
        if trajectory.outcome == "cancelled":
            return
        try:
            await self._publish(trajectory, item)
        except Unencodable as error:
            await dead_letters.send(self.publisher, observations.TOPIC, item.record, str(error))
            trajectory = broken_trajectory(item.event, str(error))
            await self.store.write_trajectory(trajectory)
            await self._publish(trajectory, item)
        announced.add(1, {"outcome": trajectory.outcome})

    async def _publish(self, trajectory: Trajectory, item: Delivery) -> None:
        context = context_of(item.record.headers)
        own = trajectory_span(trajectory.trajectory_id)._replace(sampled=context.sampled)
        with UseSpan(own if context.trace_id else ROOT):
            await self.publisher.publish(trajectories.TOPIC, trajectory, record_id=trajectory.trajectory_id)

    async def _summarize(self, item: Delivery) -> Trajectory:
        trajectory_id = item.event.trajectory_id
        steps = self.written.take(trajectory_id)
        try:
            trajectory = summarize(steps if is_whole(steps) else await self.store.steps(trajectory_id))
        except Incomplete as gap:
            reason = f"trajectory {trajectory_id}: {gap}"
            await dead_letters.send(self.publisher, observations.TOPIC, item.record, reason)
            trajectory = broken_trajectory(item.event, reason)
        await self.store.write_trajectory(trajectory)
        return trajectory


class Recorder(BatchConsumer):
    """Writes each batch concurrently."""

    max_records = BATCH
    commit_interval_s = COMMIT_INTERVAL_S

    def __init__(self, config: Config, worker_id: str, writer: ObservationWriter) -> None:
        fetch = {"fetch_min_bytes": FETCH_MIN_BYTES, "fetch_max_wait_ms": FETCH_MAX_WAIT_MS}
        super().__init__(config, worker_id, observations.TOPIC, GROUP, **fetch)
        self.writer = writer
        self.gaps = LogGaps(log)

    async def handle(self, polled: Mapping[TopicPartition, Sequence[ConsumerRecord]]) -> str:
        """Write a batch, and return its environment hosts."""
        for partition, batch in polled.items():
            await self.gaps.check(self.records, partition, batch[0].offset, batch[-1].offset)
        hosts = await self.writer.write([record for batch in polled.values() for record in batch])
        return ", ".join(sorted(hosts))
