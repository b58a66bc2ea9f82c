"""Reads ``weights`` and ``weights-serving``: what to serve, and what the other workers serve."""

import asyncio
import time
from typing import Self

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from dart_streams.bus.clients import Publisher, consumer, event_of, reached, start_within
from dart_streams.bus.codec import Undecodable
from dart_streams.config import Config
from dart_streams.telemetry.stall_detector import StallDetector
from topics import Topic, weights, weights_serving
from topics.transitions import WeightState
from topics.weights import WeightVersion
from topics.weights_serving import WeightsServing

WATCHED: tuple[Topic, ...] = (weights.TOPIC, weights_serving.TOPIC)
POLL_S = 0.5

log = structlog.get_logger()


class WeightWatcher:
    """Folds both topics from their beginnings, without a group. ``changed`` is set at each record."""

    def __init__(self, config: Config, worker_id: str, publisher: Publisher) -> None:
        self.bus = config.bus
        self.publisher = publisher
        self.topics = {config.bus.prefix + topic.name: topic for topic in WATCHED}
        self.weights = WeightState(model_id=config.policy.model_id)
        self.serving: dict[str, WeightsServing] = {}
        self.changed = asyncio.Event()
        what = f"a first version of {self.weights.model_id!r} on {config.bus.prefix}{weights.TOPIC.name}"
        self.stalls = StallDetector(log, what, config.telemetry.stall_s)
        self.records: AIOKafkaConsumer = consumer(config.bus, group=None, client_id=f"{worker_id}-weights")

    async def __aenter__(self) -> Self:
        """Seek to the beginning of both topics; raise ServiceUnavailable if the broker or a topic is not there."""
        partitions = [
            TopicPartition(name, number)
            for name, topic in self.topics.items()
            for number in range(await self.publisher.partitions_of(topic))
        ]
        await start_within(self.records, self.bus)
        self.records.assign(partitions)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.records.stop()

    async def _poll(self, seconds: float) -> None:
        """Apply new records, waiting at most ``seconds`` for a first one."""
        for batch in (await self.records.getmany(timeout_ms=int(seconds * 1000))).values():
            for record in batch:
                self._apply(record)

    async def catch_up(self) -> None:
        """Return when every record published by now was applied; :meth:`watch` must run."""
        ends = await self.records.end_offsets(self.records.assignment())
        while not await reached(self.records, ends):
            await wait_until(self.next_change(), POLL_S)

    async def watch(self) -> None:
        """Apply records as they come, until cancelled."""
        while True:
            await self._poll(POLL_S)

    async def first_version(self) -> WeightVersion:
        """Return the newest version published by now, or the first one as soon as the trainer publishes it."""
        ends = await self.records.end_offsets(self.records.assignment())
        while self.weights.newest is None or not await reached(self.records, ends):
            await self._poll(POLL_S)
            self.stalls.check()
        return self.weights.newest

    async def wait_for_newer(self, than: WeightVersion, seconds: float) -> None:
        """Return when there is a newer version, after ``seconds`` at the latest."""
        until = time.monotonic() + seconds
        while self.weights.version <= than.version and time.monotonic() < until:
            await self._poll(min(POLL_S, seconds))

    def next_change(self) -> asyncio.Event:
        """Return an event that is set at the next record."""
        self.changed.clear()
        return self.changed

    def _apply(self, record: ConsumerRecord) -> None:
        try:
            event = event_of(self.topics[record.topic], record)
        except Undecodable as error:
            log.error("record skipped", topic=record.topic, offset=record.offset, reason=str(error))
            return
        if isinstance(event, WeightVersion):
            self.weights = self.weights.accept(event)
        else:
            self.serving[event.worker_id] = event
        self.changed.set()


async def wait_until(event: asyncio.Event, seconds: float) -> None:
    """Return when ``event`` is set, at the latest after ``seconds``."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
