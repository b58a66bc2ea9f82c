"""Keeps the :class:`~dart_streams.history.run_state.RunState` of a run up to date with its topics."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from dart_streams.bus.clients import Publisher, event_of
from dart_streams.bus.codec import Undecodable
from dart_streams.bus.lag import Lag, lag_reader
from dart_streams.bus.topic_reader import POLL_MS, read_to_end, reading
from dart_streams.config import Bus
from dart_streams.errors import ServiceUnavailable
from dart_streams.history import open_orders as orders
from dart_streams.history.run_state import FOLLOWED, RecordMetadata, RunState, SeenObservation, SeenReply
from dart_streams.telemetry.stall_detector import StallDetector
from topics import ALL, BY_NAME, Topic, actions, curation_log, observations

EVERYTHING: tuple[Topic, ...] = tuple(topic for topic in ALL if topic is not curation_log.TOPIC)
"""The topics of the circle, with those that progress is not folded from."""
SEEN: dict[str, msgspec.json.Decoder[Any]] = {
    observations.TOPIC.name: msgspec.json.Decoder(SeenObservation),
    actions.TOPIC.name: msgspec.json.Decoder(SeenReply),
}
"""Of the many and large records only what progress needs is decoded."""
BATCH = 2_000
LOOK_BACK_S = 60.0
ANNOUNCED_S = 10.0
"""A trajectory that has ended is announced within so long, or its order is lost."""


class RunFollower:
    """A run seen from outside. Use :func:`watching` to make one that keeps up by itself."""

    def __init__(self, bus: Bus, records: AIOKafkaConsumer, stall_s: float) -> None:
        self.bus = bus
        self.records = records
        self.stall_s = stall_s
        self.progress = RunState()
        self.reader: asyncio.Task[None] | None = None
        self.log: Any = structlog.get_logger()
        self._changed = asyncio.Event()
        self._moved = 0

    async def read(self) -> None:
        """Fold records for ever."""
        while True:
            self.take(await self.records.getmany(timeout_ms=POLL_MS, max_records=BATCH))

    async def read_to_end(self) -> None:
        """Fold what is in the topics now."""
        async for polled in read_to_end(self.records, BATCH):
            self.take(polled)

    async def look_back(self) -> list[Lag]:
        """Read what is in the topics now, and return how far each group has come; then read no more.

        What came last counts as much as what came first. And an env worker commits an order once the end of its episode
        is told, but the recorder announces the trajectory a moment later: that is waited for.

        Raises
        ------
        ServiceUnavailable
            If the broker does not give it within a minute.
        """
        async with lag_reader(self.bus) as reader:
            lags = await reader.read()
        await self.stop()
        try:
            async with asyncio.timeout(LOOK_BACK_S):
                await self.read_to_end()
        except TimeoutError:
            why = f"the end of the run's topics could not be read within {LOOK_BACK_S:.0f} s; is the broker up?"
            raise ServiceUnavailable(why) from None
        deadline_s = time.monotonic() + ANNOUNCED_S
        while orders.lost(self.progress, lags) and time.monotonic() < deadline_s:
            self.take(await self.records.getmany(timeout_ms=POLL_MS, max_records=BATCH))
        return lags

    async def stop(self) -> None:
        """Stop to read."""
        if self.reader is not None:
            self.reader.cancel()
            await asyncio.gather(self.reader, return_exceptions=True)

    def take(self, batches: dict[TopicPartition, list[ConsumerRecord]]) -> None:
        """Fold polled records and wake whoever waits for a change."""
        for partition, records in batches.items():
            topic = BY_NAME[partition.topic.removeprefix(self.bus.prefix)]
            for record in records:
                place = RecordMetadata(topic.name, record.partition, record.offset, record.timestamp)
                with contextlib.suppress(Undecodable):
                    self.progress.apply(place, decoded(topic, record))
        if batches:
            self._changed.set()
            self._changed = asyncio.Event()

    def refuse_deafness(self) -> None:
        """Raise what ended the reading of the topics, if it has ended."""
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
            If it does not hold in time; the text says what was waited for and who was last heard of.
        """
        deadline = time.monotonic() + timeout_s
        waiting = StallDetector(self.log, what, self.stall_s)
        while not condition(self.progress):
            if time.monotonic() >= deadline:
                raise ServiceUnavailable(
                    f"waited {timeout_s:.0f} s for {what} in vain; last heard of: {waiting.last_from}. {advice}"
                )
            self.refuse_deafness()
            changed = self._changed
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), min(1.0, max(0.0, deadline - time.monotonic())))
            self.check(waiting)
        return self.progress

    def check(self, waiting: StallDetector) -> None:
        """Tell a wait whether anything has moved since it was last asked about, and let it report if not."""
        heard = self.progress.heard.items()
        newest = max(((h.at_ms, topic, h.sender) for topic, h in heard if topic != HEARTBEAT), default=None)
        moved = sum(h.records for topic, h in heard if topic != HEARTBEAT)
        if newest is not None and moved != self._moved:
            self._moved = moved
            waiting.note_arrival(f"{newest[2] or 'someone'} on {newest[1]}")
        waiting.check()


HEARTBEAT = "weights-serving"
"""It is repeated whether anything moves or not."""


def decoded(topic: Topic, record: ConsumerRecord) -> Any:
    """Return the event of a record, of an observation only the part that progress needs."""
    if topic not in FOLLOWED and topic.name not in SEEN:
        return None
    if topic.name not in SEEN:
        return event_of(topic, record)
    try:
        return SEEN[topic.name].decode(record.value or b"")
    except msgspec.DecodeError as error:
        raise Undecodable(str(error)) from None


@contextlib.asynccontextmanager
async def following(
    bus: Bus, publisher: Publisher, stall_s: float, topics: tuple[Topic, ...] = FOLLOWED
) -> AsyncIterator[RunFollower]:
    """Yield a watch that has read all there is and goes on reading."""
    async with reading(bus, publisher, topics) as records:
        watch = RunFollower(bus, records, stall_s)
        await watch.read_to_end()
        watch.reader = asyncio.create_task(watch.read(), name="watch topics")
        try:
            yield watch
        finally:
            await watch.stop()
