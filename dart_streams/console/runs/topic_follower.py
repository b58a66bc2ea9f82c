"""Folds a run's topics as their records arrive, and notes the times of arrival."""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any, Generic, TypeVar

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from dart_streams.bus.clients import POLL_TIMEOUT_MS, Publisher, open_topics, read_to_end
from dart_streams.bus.codec import Undecodable
from dart_streams.config import Bus
from dart_streams.console.runs.bundle import BundleRecord
from dart_streams.console.runs.run_log import HEADERS, RecordMetadata, event_of
from dart_streams.console.runs.stalls import LastArrival
from dart_streams.console.runs.topic_activity import ActivityState
from dart_streams.heartbeats import Heartbeats
from topics import ALL, BY_NAME, Topic, curation_log
from topics.weights_serving import WeightsServing

FOLLOWED: tuple[Topic, ...] = tuple(
    BY_NAME[name]
    for name in ("rollout-orders", "observations", "trajectories", "curated", "weights", "weights-serving")
)
"""Topics of display and report."""
CIRCLE: tuple[Topic, ...] = tuple(topic for topic in ALL if topic is not curation_log.TOPIC)
"""All topics of the circle."""
DECODED = frozenset({topic.name for topic in FOLLOWED} | HEADERS.keys())
BATCH = 2_000
FETCH_MS = 1000
"""Longest wait of a fetch; a fetch costs the broker as much as a record."""

State = TypeVar("State", bound=ActivityState)


class TopicFollower(Generic[State]):
    """Folds topics into ``progress``; :func:`keep_reading` does so in the background.

    Topics that are not ``decoded`` only count as activity. ``arrivals`` has the time (of ``clock``) and the sender of
    each topic's last record, and ``heartbeats`` the living rollout workers, both from ``since_s`` on.
    """

    def __init__(
        self,
        bus: Bus,
        records: AIOKafkaConsumer,
        progress: State,
        decoded: Collection[str] = DECODED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.bus = bus
        self.records = records
        self.progress = progress
        self.decoded = decoded
        self.clock = clock
        self.since_s = math.inf
        self.arrivals: dict[str, LastArrival] = {}
        self.heartbeats = Heartbeats(clock)
        self.reader: asyncio.Task[None] | None = None
        self.log: Any = structlog.get_logger()
        self.changed = asyncio.Event()

    async def read(self) -> None:
        """Fold records until cancelled."""
        while True:
            await self.poll()

    async def read_to_end(self) -> None:
        """Fold the topics' present records."""
        async for batches in read_to_end(self.records, BATCH):
            self.fold(batches)

    async def stop(self) -> None:
        """Stop the reader task."""
        if self.reader is not None:
            self.reader.cancel()
            await asyncio.gather(self.reader, return_exceptions=True)

    async def poll(self) -> None:
        """Fold the next records."""
        self.fold(await self.records.getmany(timeout_ms=POLL_TIMEOUT_MS, max_records=BATCH))

    def fold(self, batches: dict[TopicPartition, list[ConsumerRecord]]) -> None:
        """Apply polled records and set ``changed``."""
        for partition, records in batches.items():
            topic = partition.topic.removeprefix(self.bus.prefix)
            for record in records:
                metadata = RecordMetadata(topic, record.partition, record.offset, record.timestamp)
                with contextlib.suppress(Undecodable):
                    event = event_of(topic, BundleRecord.of(record)) if topic in self.decoded else None
                    self._note_arrival(topic, event, self.progress.apply(metadata, event))
        if batches:
            self.changed.set()
            self.changed = asyncio.Event()

    def _note_arrival(self, topic: str, event: Any, sender: str) -> None:
        now_s = self.clock()
        if now_s < self.since_s:
            return
        self.arrivals[topic] = LastArrival(now_s, sender)
        if isinstance(event, WeightsServing):
            self.heartbeats.note(event.worker_id, event.alive_ms)


@contextlib.asynccontextmanager
async def keep_reading(follower: TopicFollower[State]) -> AsyncIterator[None]:
    """Read the topics, and go on reading during the body."""
    await follower.read_to_end()
    follower.since_s = follower.clock()
    follower.reader = asyncio.create_task(follower.read(), name="read topics")
    try:
        yield
    finally:
        await follower.stop()


@contextlib.asynccontextmanager
async def follow_activity(bus: Bus, publisher: Publisher) -> AsyncIterator[TopicFollower[ActivityState]]:
    """Yield a follower of the activity of the circle's topics."""
    async with open_topics(bus, publisher, CIRCLE, FETCH_MS) as records:
        follower = TopicFollower(bus, records, ActivityState())
        async with keep_reading(follower):
            yield follower
