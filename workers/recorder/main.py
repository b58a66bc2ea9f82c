"""The recorder: makes every observation durable, and announces each trajectory once all of its steps are.

=============  ==================================================================================================
consumes       ``observations`` (group ``recorder``)
produces       steps and trajectories (store); then ``trajectories``; ``observations.dlq``
waits for      observations; the database, ``store.wait_s`` at most
unblocked by   environment workers
=============  ==================================================================================================

It keeps no state between batches: a trajectory's observations come in order, as they share a key, so when its end
comes all of its steps are in the store, whichever recorder wrote them.
"""

import asyncio
import contextlib
import time

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError

from dart_streams.bus.clients import Publisher, consumer, reached, start_within
from dart_streams.config import Config
from dart_streams.store import AsyncStore, connect_async
from dart_streams.telemetry.stall_detector import StallDetector
from topics import observations
from workers.recorder.observation_writer import ObservationWriter
from workers.runtime import lifecycle

log = structlog.get_logger()

GROUP = "recorder"
BATCH = 1024
"""Maximum number of observations written concurrently: enough for a recorder that lags to catch up."""
FETCH_MAX_WAIT_MS = 100
FETCH_MIN_BYTES = 64 * 1024
"""A fetch waits for this many bytes, or this long: the database syncs its commit log once a batch."""
COMMIT_S = 1.0
"""Minimum time between commits; a batch that was not committed is repeated by the next recorder, without effect."""
POLL_MS = 500
"""How long one poll waits for a first observation, and so how late a stop is noticed."""


def run(config: Config, worker_id: str) -> int:
    """Be recorder ``worker_id`` until SIGTERM or SIGINT; return the exit code."""
    return lifecycle.run(connect, config, worker_id)


async def connect(config: Config, worker_id: str, resources: contextlib.AsyncExitStack) -> lifecycle.Worker:
    """Connect to the broker and the store; return the worker, ready to record.

    Raises ServiceUnavailable if the broker or the database does not answer within its bound.
    """
    publisher = await resources.enter_async_context(Publisher(config.bus, worker_id))
    await publisher.partitions_of(observations.TOPIC)
    session = await connect_async(config.store)
    resources.callback(session.cluster.shutdown)
    store = AsyncStore(session, config.bus.run, cache_mb=0, wait_s=config.store.wait_s)
    records = consumer(
        config.bus,
        observations.TOPIC,
        group=GROUP,
        client_id=worker_id,
        fetch_min_bytes=FETCH_MIN_BYTES,
        fetch_max_wait_ms=FETCH_MAX_WAIT_MS,
    )
    resources.push_async_callback(records.stop)
    await start_within(records, config.bus)
    name = config.bus.prefix + observations.TOPIC.name
    stalls = StallDetector(log, f"observations on {name}", config.telemetry.stall_s)
    log.info("recording")
    return lifecycle.Worker(
        Recorder(records, ObservationWriter(store, publisher), stalls, config.run.drain_s / 2).serve
    )


class Recorder:
    """The loop: poll a batch, write it, commit.

    It commits whole batches, not records as :mod:`workers.runtime.ordered_consumer` does: a batch is written side by
    side and is durable as a whole, so its offsets are those that follow its last records.
    """

    def __init__(
        self, records: AIOKafkaConsumer, writer: ObservationWriter, stalls: StallDetector, drain_s: float
    ) -> None:
        self.records = records
        self.writer = writer
        self.stalls = stalls
        self.drain_s = drain_s
        self.durable: dict[TopicPartition, int] = {}
        self.committed_s = 0.0

    async def serve(self, stop: asyncio.Event) -> None:
        """Record batch after batch until ``stop`` is set, then up to the present ends, for ``drain_s`` at most."""
        while not stop.is_set():
            await self._record_batch()
        deadline_s = time.monotonic() + self.drain_s
        ends = await self.records.end_offsets(self.records.assignment())
        while time.monotonic() < deadline_s and not await reached(self.records, self._assigned(ends)):
            await self._record_batch()
        await self._commit()

    async def _record_batch(self) -> None:
        polled = await self.records.getmany(timeout_ms=POLL_MS, max_records=BATCH)
        self.stalls.check()
        if polled:
            hosts = await self.writer.write([record for batch in polled.values() for record in batch])
            self.durable |= {partition: batch[-1].offset + 1 for partition, batch in polled.items()}
            self.stalls.note_arrival(", ".join(sorted(hosts)))
        if time.monotonic() - self.committed_s >= COMMIT_S:
            await self._commit()

    def _assigned(self, offsets: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the offsets of the partitions that are still assigned."""
        return {partition: offsets[partition] for partition in offsets.keys() & self.records.assignment()}

    async def _commit(self) -> None:
        """Commit what is durable of the partitions that are still assigned; a refused commit is repeated work only."""
        offsets = self._assigned(self.durable)
        self.durable, self.committed_s = {}, time.monotonic()
        if not offsets:
            return
        try:
            await self.records.commit(offsets)
        except (CommitFailedError, IllegalStateError) as error:
            log.info("commit refused", reason=str(error) or type(error).__name__)
