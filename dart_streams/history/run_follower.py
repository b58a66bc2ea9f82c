"""Keeps the :class:`~dart_streams.history.run_state.RunState` of a run up to date with its topics."""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from dart_streams.bus.clients import POLL_MS, Publisher, read_to_end, reading
from dart_streams.bus.codec import Undecodable
from dart_streams.bus.lag import Lag, lag_reader
from dart_streams.config import Bus
from dart_streams.deadline import Deadline
from dart_streams.errors import ServiceUnavailable
from dart_streams.heartbeats import Heartbeats
from dart_streams.history.bundle import BundleRecord
from dart_streams.history.run_log import HEADERS, RecordMetadata, event_of
from dart_streams.history.run_state import RunState
from dart_streams.history.stalls import LastArrival
from dart_streams.telemetry.stall_detector import StallDetector
from topics import ALL, BY_NAME, Topic, curation_log, weights_serving
from topics.weights_serving import WeightsServing

FOLLOWED: tuple[Topic, ...] = tuple(
    BY_NAME[name]
    for name in ("rollout-orders", "observations", "trajectories", "curated", "weights", "weights-serving")
)
"""The topics that display and report are folded from."""
CIRCLE: tuple[Topic, ...] = tuple(topic for topic in ALL if topic is not curation_log.TOPIC)
"""The topics of the circle; of those not in ``FOLLOWED`` only the activity is folded."""
HEARTBEAT = weights_serving.TOPIC.name
"""It is repeated whether anything moves or not."""
DECODED = frozenset({topic.name for topic in FOLLOWED} | HEADERS.keys())
BATCH = 2_000
FETCH_MS = 1000
"""Who looks on may be a second late: each fetch costs the broker what a record costs it."""
FINAL_READ_S = 60.0
LAGS_S = 20.0
LAGS_PAUSE_S = 0.5
ANNOUNCED_S = 10.0
"""A trajectory that has ended is announced within this time, or its order is lost."""


class RunFollower:
    """The state of a running run. Use :func:`following` to make one that keeps up by itself.

    Of topics that are not ``decoded`` only the activity is folded. ``arrivals`` has when the last record of each topic
    arrived here (``clock``) and from whom, and ``heartbeats`` which rollout workers are alive; what was in the topics
    before (``since_s``) is in neither.
    """

    def __init__(
        self,
        bus: Bus,
        records: AIOKafkaConsumer,
        stall_s: float,
        decoded: Collection[str] = DECODED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.bus = bus
        self.records = records
        self.stall_s = stall_s
        self.decoded = decoded
        self.clock = clock
        self.progress = RunState()
        self.since_s = math.inf
        self.arrivals: dict[str, LastArrival] = {}
        self.heartbeats = Heartbeats(clock)
        self.reader: asyncio.Task[None] | None = None
        self.log: Any = structlog.get_logger()
        self._changed = asyncio.Event()
        self._records_seen = 0

    async def read(self) -> None:
        """Fold records until cancelled."""
        while True:
            await self.poll()

    async def read_to_end(self) -> None:
        """Fold what is in the topics now."""
        async for batches in read_to_end(self.records, BATCH):
            self.fold(batches)

    async def read_final(self) -> list[Lag] | None:
        """Stop the reader task, read what is in the topics now, and return each group's lag, None if it stays unknown.

        An env worker commits an order once the end of its episode is published, but the recorder publishes the
        trajectory a moment later: that is waited for.

        Raises
        ------
        ServiceUnavailable
            If the broker does not give it within a minute.
        """
        lags = await self.read_lags()
        await self.stop()
        try:
            async with asyncio.timeout(FINAL_READ_S):
                await self.read_to_end()
        except TimeoutError:
            reason = f"the end of the run's topics could not be read within {FINAL_READ_S:.0f} s; is the broker up?"
            raise ServiceUnavailable(reason) from None
        deadline = Deadline(ANNOUNCED_S)
        while self.progress.lost(lags) and not deadline.expired:
            await self.poll()
        return lags

    async def read_lags(self) -> list[Lag] | None:
        """Return each group's lag; None if the broker does not say within :data:`LAGS_S`."""
        deadline = Deadline(LAGS_S)
        async with lag_reader(self.bus) as reader:
            while (lags := await reader.read()) is None:
                if deadline.expired:
                    self.log.warning("committed offsets not read", bound_s=LAGS_S, effect="lost orders are not known")
                    break
                await asyncio.sleep(LAGS_PAUSE_S)
        return lags

    async def stop(self) -> None:
        """Stop the reader task."""
        if self.reader is not None:
            self.reader.cancel()
            await asyncio.gather(self.reader, return_exceptions=True)

    async def poll(self) -> None:
        """Fold the next records."""
        self.fold(await self.records.getmany(timeout_ms=POLL_MS, max_records=BATCH))

    def fold(self, batches: dict[TopicPartition, list[ConsumerRecord]]) -> None:
        """Apply polled records and wake whoever waits for a change."""
        for partition, records in batches.items():
            topic = partition.topic.removeprefix(self.bus.prefix)
            for record in records:
                metadata = RecordMetadata(topic, record.partition, record.offset, record.timestamp)
                with contextlib.suppress(Undecodable):
                    event = event_of(topic, BundleRecord.of(record)) if topic in self.decoded else None
                    self._note_arrival(topic, event, self.progress.apply(metadata, event))
        if batches:
            self._changed.set()
            self._changed = asyncio.Event()

    def _note_arrival(self, topic: str, event: Any, sender: str) -> None:
        now_s = self.clock()
        if now_s < self.since_s:
            return
        self.arrivals[topic] = LastArrival(now_s, sender)
        if isinstance(event, WeightsServing):
            self.heartbeats.note(event.worker_id, event.alive_ms)

    def raise_if_reader_failed(self) -> None:
        """Raise what ended the reader task, if it has ended."""
        if self.reader is not None and self.reader.done():
            self.reader.result()
            raise ServiceUnavailable("the run's topics are not read any more")

    async def until(
        self, condition: Callable[[RunState], bool], what: str, timeout_s: float, advice: str = ""
    ) -> RunState:
        """Return when ``condition`` holds; a silence longer than the stall bound is logged on the way.

        Raises
        ------
        ServiceUnavailable
            If it does not hold in time; the text says what was waited for, and who wrote the last record.
        """
        deadline = Deadline(timeout_s)
        waiting = StallDetector(self.log, what, self.stall_s)
        while not condition(self.progress):
            if deadline.expired:
                raise ServiceUnavailable(
                    f"waited {timeout_s:.0f} s for {what}; the last record came from {waiting.last_from}. {advice}"
                )
            self.raise_if_reader_failed()
            changed = self._changed
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(1.0, deadline.remaining_s)):
                    await changed.wait()
            self.check(waiting)
        return self.progress

    def check(self, waiting: StallDetector) -> None:
        """Feed a stall detector with the newest activity, and let it report a silence."""
        activity = [(topic, of_topic) for topic, of_topic in self.progress.activity.items() if topic != HEARTBEAT]
        seen = sum(a.records for _, a in activity)
        if seen and seen != self._records_seen:
            self._records_seen = seen
            before = LastArrival(-math.inf, "")
            _, topic, sender = max((self.arrivals.get(topic, before).at_s, topic, a.sender) for topic, a in activity)
            waiting.note_arrival(f"{self.arrivals.get(topic, before).sender or sender or 'someone'} on {topic}")
        waiting.check()


@contextlib.asynccontextmanager
async def following(
    bus: Bus, publisher: Publisher, stall_s: float, topics: tuple[Topic, ...] = FOLLOWED
) -> AsyncIterator[RunFollower]:
    """Yield a follower that has read what is in the topics and keeps reading."""
    async with reading(bus, publisher, topics, FETCH_MS) as records:
        follower = RunFollower(bus, records, stall_s)
        await follower.read_to_end()
        follower.since_s = follower.clock()
        follower.reader = asyncio.create_task(follower.read(), name="read topics")
        try:
            yield follower
        finally:
            await follower.stop()
