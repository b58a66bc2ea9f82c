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

from dart_streams.bus.clients import Publisher, consumer, start_within
from dart_streams.config import Config
from dart_streams.store import AsyncStore, connect_async
from dart_streams.telemetry import setup
from dart_streams.telemetry.stall_detector import StallDetector
from topics import observations
from workers.recorder.observation_writer import ObservationWriter
from workers.runtime.lifecycle import cancel_on_stop, freeze_gc, stop_on_signals

log = structlog.get_logger()

GROUP = "recorder"
BATCH = 1024
"""So many observations at most are written side by side: enough for a recorder that lags to catch up."""
GATHER_MS = 100
GATHER_BYTES = 64 * 1024
"""A fetch waits for so many bytes, and so long: a batch costs its commit log once."""
COMMIT_S = 1.0
"""Offsets are committed this often at most; what a recorder that dies had not committed is repeated, without harm."""
POLL_MS = 500
"""How long one poll waits for a first observation, and so how late a stop is noticed."""


def run(config: Config, worker_id: str) -> int:
    """Be recorder ``worker_id`` until SIGTERM or SIGINT; return the exit code.

    Raises
    ------
    ServiceUnavailable
        If the broker or the database does not answer within its bound.
    """
    setup.start(config, worker_id)
    try:
        return asyncio.run(live(config, worker_id))
    finally:
        setup.stop()


async def live(config: Config, worker_id: str, stop: asyncio.Event | None = None) -> int:
    """Connect, record until told to stop (by signals, if no event is given)."""
    stop = stop or stop_on_signals()
    async with contextlib.AsyncExitStack() as open_parts:
        recorder = await cancel_on_stop(stop, connect(config, worker_id, open_parts))
        if recorder is not None:
            freeze_gc()
            log.info("recording")
            await recorder.record(stop)
    return 0


class Recorder:
    """The loop: poll, take down, commit."""

    def __init__(
        self, records: AIOKafkaConsumer, scribe: ObservationWriter, waiting: StallDetector, drain_s: float
    ) -> None:
        self.records = records
        self.scribe = scribe
        self.waiting = waiting
        self.drain_s = drain_s
        self.done: dict[TopicPartition, int] = {}
        self.committed_s = 0.0

    async def record(self, stop: asyncio.Event) -> None:
        """Record batch after batch until ``stop`` is set, and then what is there already, for ``drain_s`` at most."""
        while not stop.is_set():
            await self._record_batch()
        deadline_s = time.monotonic() + self.drain_s
        ends = await self.records.end_offsets(self.records.assignment())
        while time.monotonic() < deadline_s and await self._is_behind(ends):
            await self._record_batch()
        await self._commit()

    async def _record_batch(self) -> None:
        polled = await self.records.getmany(timeout_ms=POLL_MS, max_records=BATCH)
        self.waiting.check()
        if polled:
            hosts = await self.scribe.take_down([record for batch in polled.values() for record in batch])
            self.done |= {partition: batch[-1].offset + 1 for partition, batch in polled.items()}
            self.waiting.note_arrival(", ".join(sorted(hosts)))
        if time.monotonic() - self.committed_s >= COMMIT_S:
            await self._commit()

    async def _is_behind(self, ends: dict[TopicPartition, int]) -> bool:
        """Say whether one of the partitions that are still this recorder's has not been read up to its end."""
        ours = [partition for partition in ends if partition in self.records.assignment()]
        return any([await self.records.position(partition) < ends[partition] for partition in ours])

    async def _commit(self) -> None:
        """Commit what is done of the partitions that are still this recorder's."""
        offsets = {place: offset for place, offset in self.done.items() if place in self.records.assignment()}
        self.done, self.committed_s = {}, time.monotonic()
        if not offsets:
            return
        try:
            await self.records.commit(offsets)
        except (CommitFailedError, IllegalStateError) as error:
            log.info("commit refused", why=str(error), then="another recorder repeats the batch, without harm")


async def connect(config: Config, worker_id: str, open_parts: contextlib.AsyncExitStack) -> Recorder:
    """Return the recorder with everything it needs; ``open_parts`` closes it, the last opened first."""
    publisher = await open_parts.enter_async_context(Publisher(config.bus, worker_id))
    await publisher.partitions_of(observations.TOPIC)
    session = await connect_async(config.store)
    open_parts.callback(session.cluster.shutdown)
    store = AsyncStore(session, config.bus.run, cache_mb=0, wait_s=config.store.wait_s)
    records = consumer(
        config.bus,
        observations.TOPIC,
        group=GROUP,
        client_id=worker_id,
        fetch_min_bytes=GATHER_BYTES,
        fetch_max_wait_ms=GATHER_MS,
    )
    open_parts.push_async_callback(records.stop)
    await start_within(records, config.bus)
    name = config.bus.prefix + observations.TOPIC.name
    waiting = StallDetector(log, f"observations on {name}", config.telemetry.stall_s)
    return Recorder(records, ObservationWriter(store, publisher), waiting, config.run.drain_s / 2)
