"""Folds a run's topics into its state as records arrive, and waits for conditions on the state."""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from console.runs import open_orders
from console.runs.bundle import BundleRecord
from console.runs.run_log import HEADERS, RecordMetadata, event_of
from console.runs.run_state import Retention, RunState
from console.runs.topic_activity import ActivityState, LastArrival, describe_stall, find_stalls
from dart_streams.background import cancel_tasks, wait_at_most
from dart_streams.bus.clients import POLL_TIMEOUT_MS, Publisher, open_topics, read_to_end
from dart_streams.bus.codec import Undecodable
from dart_streams.bus.lag import Lag, lag_reader
from dart_streams.config import Bus
from dart_streams.deadline import Deadline
from dart_streams.errors import ServiceUnavailable
from dart_streams.heartbeats import Heartbeats
from dart_streams.telemetry.stall_detector import StallDetector
from topics import ALL, BY_NAME, Topic, curation_log, weights_serving
from topics.weights_serving import WeightsServing

FOLLOWED: tuple[Topic, ...] = tuple(
    BY_NAME[name]
    for name in ("rollout-orders", "observations", "trajectories", "curated", "trained", "weights", "weights-serving")
)
"""Topics of display and report."""
CIRCLE: tuple[Topic, ...] = tuple(topic for topic in ALL if topic is not curation_log.TOPIC)
DECODED = frozenset({topic.name for topic in FOLLOWED} | HEADERS.keys())
BATCH = 2_000
FETCH_MS = 1000
"""Longest wait of a fetch; a fetch costs the broker as much as a record."""

State = TypeVar("State", bound=ActivityState)
Follower = TypeVar("Follower", bound="TopicFollower[Any]")


class TopicFollower(Generic[State]):
    """Folds topics into ``progress``; :func:`follow` does so in the background.

    Topics that are not ``decoded`` only count as activity. ``arrivals`` has the time (of ``clock``) and the sender of
    each topic's last record, and ``heartbeats`` the living rollout workers, both from ``since_s`` on.
    """

    def __init__(
        self, bus: Bus, records: AIOKafkaConsumer, progress: State, decoded: Collection[str] = DECODED
    ) -> None:
        self.bus = bus
        self.records = records
        self.progress = progress
        self.decoded = decoded
        self.clock = time.monotonic
        self.since_s = math.inf
        self.arrivals: dict[str, LastArrival] = {}
        self.heartbeats = Heartbeats(self.clock)
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
            await cancel_tasks(self.reader)

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
async def follow(
    bus: Bus, publisher: Publisher, topics: tuple[Topic, ...], follower_of: Callable[[AIOKafkaConsumer], Follower]
) -> AsyncIterator[Follower]:
    """Yield a follower that has read the topics and keeps reading."""
    async with open_topics(bus, publisher, topics, FETCH_MS) as records:
        follower = follower_of(records)
        await follower.read_to_end()
        follower.since_s = follower.clock()
        follower.reader = asyncio.create_task(follower.read(), name="read topics")
        try:
            yield follower
        finally:
            await follower.stop()


def follow_activity(bus: Bus, publisher: Publisher) -> AbstractAsyncContextManager[TopicFollower[ActivityState]]:
    """Follow the activity of the circle's topics."""
    return follow(bus, publisher, CIRCLE, lambda records: TopicFollower(bus, records, ActivityState()))


HEARTBEAT = weights_serving.TOPIC.name
"""Workers repeat its records, which are no activity."""
FINAL_READ_S = 60.0
LAGS_S = 20.0
LAGS_PAUSE_S = 0.5
ANNOUNCED_S = 10.0
"""Time for the recorder to announce an ended trajectory; then its order is lost."""


class RunFollower(TopicFollower[RunState]):
    """The state of a running run, bounded by ``keep``. :func:`follow_run` keeps one up to date."""

    def __init__(
        self,
        bus: Bus,
        records: AIOKafkaConsumer,
        stall_s: float,
        decoded: Collection[str] = DECODED,
        keep: Retention | None = None,
    ) -> None:
        super().__init__(bus, records, RunState(keep=keep), decoded)
        self.stall_s = stall_s
        self._records_seen = 0

    async def read_final(self) -> list[Lag] | None:
        """Stop the reader task, read the topics to their ends, and return each group's lag, None if unknown.

        The recorder's trajectory comes later than an env worker's commit, and is awaited. The recorder's lag is read
        after that: what it has committed by then without a trajectory is lost.

        Raises ServiceUnavailable if the broker does not answer within :data:`FINAL_READ_S`.
        """
        lags = await self.read_lags()
        await self.stop()
        await self._read_rest()
        deadline = Deadline(ANNOUNCED_S)
        while (missing := open_orders.unannounced_orders(self.progress, lags or ())) and not deadline.expired:
            await self.poll()
        if lags is not None and missing and (later := await self.read_lags()) is not None:
            await self._read_rest()
            lags = [lag for lag in lags if lag.group != "recorder"] + [lag for lag in later if lag.group == "recorder"]
        return lags

    async def _read_rest(self) -> None:
        """Read the topics to their present ends, within :data:`FINAL_READ_S`."""
        try:
            async with asyncio.timeout(FINAL_READ_S):
                await self.read_to_end()
        except TimeoutError:
            reason = f"the end of the run's topics could not be read within {FINAL_READ_S:.0f} s; is the broker up?"
            raise ServiceUnavailable(reason) from None

    async def read_lags(self) -> list[Lag] | None:
        """Return each group's lag, None if the broker does not answer within :data:`LAGS_S`."""
        deadline = Deadline(LAGS_S)
        async with lag_reader(self.bus) as reader:
            while (lags := await reader.read()) is None:
                if deadline.expired:
                    self.log.warning("committed offsets not read", bound_s=LAGS_S, effect="lost orders are not known")
                    break
                await asyncio.sleep(LAGS_PAUSE_S)
        return lags

    def raise_if_reader_failed(self) -> None:
        """Raise the reader task's exception if it has ended."""
        if self.reader is not None and self.reader.done():
            self.reader.result()
            raise ServiceUnavailable("the run's topics are not read any more")

    async def until(
        self, condition: Callable[[RunState], bool], what: str, timeout_s: float, advice: str = ""
    ) -> RunState:
        """Return when ``condition`` holds, and log silences until then; raise ServiceUnavailable if it is late."""
        deadline = Deadline(timeout_s)
        waiting = StallDetector(self.log, what, self.stall_s)
        while not condition(self.progress):
            if deadline.expired:
                raise ServiceUnavailable(
                    f"waited {timeout_s:.0f} s for {what}; the last record came from {waiting.last_from}. {advice}"
                )
            self.raise_if_reader_failed()
            changed = self.changed
            await wait_at_most(changed, min(1.0, deadline.remaining_s))
            self.check(waiting, what)
        return self.progress

    def check(self, waiting: StallDetector, what: str) -> None:
        """Update a stall detector with the newest activity, and log a silence with its probable cause."""
        activity = [(topic, of_topic) for topic, of_topic in self.progress.activity.items() if topic != HEARTBEAT]
        seen = sum(a.records for _, a in activity)
        if seen and seen != self._records_seen:
            self._records_seen = seen
            before = LastArrival(-math.inf, "")
            _, topic, sender = max((self.arrivals.get(topic, before).at_s, topic, a.sender) for topic, a in activity)
            waiting.note_arrival(f"{self.arrivals.get(topic, before).sender or sender or 'someone'} on {topic}")
        silent = find_stalls(self.progress.activity, self.arrivals, self.since_s, self.clock(), self.stall_s)
        waiting.what = f"{what} ({describe_stall(silent[0])})" if silent else what
        waiting.check()


def follow_run(
    bus: Bus, publisher: Publisher, stall_s: float, topics: tuple[Topic, ...] = FOLLOWED, keep: Retention | None = None
) -> AbstractAsyncContextManager[RunFollower]:
    """Follow the state of a run."""
    return follow(bus, publisher, topics, lambda records: RunFollower(bus, records, stall_s, keep=keep))
