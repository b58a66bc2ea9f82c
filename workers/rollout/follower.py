"""Follows ``weights`` and ``weights-serving``: what to serve, and what the other workers serve."""

import asyncio
from types import TracebackType
from typing import Self

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from dart_streams.bus.clients import Publisher, consumer, event_of, start_within
from dart_streams.bus.codec import Undecodable
from dart_streams.config import Config
from dart_streams.telemetry.waits import Waiting
from topics import Topic, weights, weights_serving
from topics.weights import WeightVersion
from topics.weights_serving import WeightsServing
from workers.rollout.versions import Newest, serving_after

FOLLOWED: tuple[Topic, ...] = (weights.TOPIC, weights_serving.TOPIC)

log = structlog.get_logger()


class Follower:
    """Reads both topics whole, without a group, and keeps what they add up to. ``changed`` is set at each record."""

    def __init__(self, config: Config, worker_id: str, publisher: Publisher) -> None:
        self.bus = config.bus
        self.publisher = publisher
        self.stall_s = config.telemetry.stall_s
        self.newest = Newest(model_id=config.policy.model_id)
        self.serving: dict[str, WeightsServing] = {}
        self.changed = asyncio.Event()
        self.records: AIOKafkaConsumer = consumer(config.bus, group=None, client_id=f"{worker_id}-weights")

    async def __aenter__(self) -> Self:
        """Read both topics up to their present ends.

        Raises
        ------
        ServiceUnavailable
            If no broker answers within ``bus.wait_s``, or it lacks the topics.
        """
        await start_within(self.records, self.bus)
        try:
            partitions = [
                TopicPartition(self._name(topic), number)
                for topic in FOLLOWED
                for number in range(await self.publisher.partitions_of(topic))
            ]
            self.records.assign(partitions)
            ends = await self.records.end_offsets(partitions)
            for partition, end in ends.items():
                while await self.records.position(partition) < end:
                    for batch in (await self.records.getmany(partition, timeout_ms=200)).values():
                        self._apply_all(batch)
        except BaseException:
            await self.records.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.records.stop()

    async def follow(self) -> None:
        """Apply records as they come, for ever."""
        async for record in self.records:
            self._apply_all([record])

    async def first(self) -> WeightVersion:
        """Return the newest version once there is one. The trainer may start later: the wait is only reported."""
        what = f"a first version of {self.newest.model_id!r} on {self._name(weights.TOPIC)}"
        waiting = Waiting(log, what, self.stall_s)
        while self.newest.target is None:
            await wait_until(self.fresh(), min(self.stall_s, 1.0))
            waiting.check()
        return self.newest.target

    def fresh(self) -> asyncio.Event:
        """Return an event that is set at the next record."""
        self.changed.clear()
        return self.changed

    def _apply_all(self, records: list[ConsumerRecord]) -> None:
        for record in records:
            topic = next(topic for topic in FOLLOWED if self._name(topic) == record.topic)
            try:
                event = event_of(topic, record)
            except Undecodable as error:
                log.error("record skipped", topic=record.topic, offset=record.offset, why=str(error))
                continue
            if isinstance(event, WeightVersion):
                self.newest = self.newest.after(event)
            else:
                self.serving = serving_after(self.serving, event)
        self.changed.set()

    def _name(self, topic: Topic) -> str:
        return self.bus.prefix + topic.name


async def wait_until(event: asyncio.Event, seconds: float) -> None:
    """Return when ``event`` is set, at the latest after ``seconds``."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
