"""Takes orders from the topic, one whenever a slot asks, and commits those whose episodes have ended.

The read-ahead is the client's own buffer of partitions this host owns; it takes nothing from another host's share, as
the group divides partitions, and is dropped when one moves.
"""

import asyncio
from types import TracebackType
from typing import Self

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from dart_streams.bus import dead_letters
from dart_streams.bus.clients import Publisher, consumer, event_of, start_within
from dart_streams.bus.codec import Undecodable
from dart_streams.bus.offsets import TrackedOffset
from dart_streams.config import Config
from dart_streams.telemetry.stall_detector import StallDetector
from topics import rollout_orders
from topics.rollout_orders import RolloutOrder
from workers.env.running_orders import Offer, RunningOrders

log = structlog.get_logger()

GROUP = "env"
COMMIT_S = 0.5
POLL_SLACK_S = 60.0


class TakenOrder:
    """An order to play, and the record it came in."""

    def __init__(self, order: RolloutOrder, record: ConsumerRecord) -> None:
        self.order = order
        self.record = record


class OrderConsumer(ConsumerRebalanceListener):
    """The part of ``rollout-orders`` that the group has given to this host."""

    def __init__(self, config: Config, worker_id: str, publisher: Publisher) -> None:
        self.bus = config.bus
        self.publisher = publisher
        self.name = config.bus.prefix + rollout_orders.TOPIC.name
        self.waiting = StallDetector(log, f"orders on {self.name}", config.telemetry.stall_s)
        self.orders: RunningOrders[TopicPartition] = RunningOrders()
        self._turn = asyncio.Lock()
        # All slots may be busy for as long as the longest episode, without a poll.
        poll_s = 2 * config.env.episode_timeout_s + POLL_SLACK_S
        self.records: AIOKafkaConsumer = consumer(
            config.bus,
            group=GROUP,
            client_id=worker_id,
            max_poll_interval_ms=int(max(poll_s, 600) * 1000),
        )

    async def __aenter__(self) -> Self:
        """Join the group; raise ServiceUnavailable if the broker or the topic is not there."""
        await self.publisher.partitions_of(rollout_orders.TOPIC)
        self.records.subscribe([self.name], listener=self)
        await start_within(self.records, self.bus)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.records.stop()

    async def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        """Commit what has ended; the rest is delivered again, to whoever owns it then."""
        await self.commit()
        self.orders.revoke(revoked)

    async def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        """Start afresh with these partitions."""
        self.orders.assign(assigned)

    async def take(self) -> TakenOrder:
        """Return the next order to play, however long that takes. Slots that ask together are served in turn."""
        async with self._turn:
            self.waiting.note_arrival()
            while True:
                record = await self.records.getone()
                order = await self._order_of(record)
                if order is not None:
                    self.waiting.note_arrival(f"{record.topic}[{record.partition}]@{record.offset}")
                    return TakenOrder(order, record)

    async def _order_of(self, record: ConsumerRecord) -> RolloutOrder | None:
        """Return the order to start, or None if there is nothing to start."""
        place = TrackedOffset(TopicPartition(record.topic, record.partition), record.offset)
        try:
            order: RolloutOrder = event_of(rollout_orders.TOPIC, record)
        except Undecodable as why:
            await self.put_aside(record, str(why))
            self.orders.put_aside(place)
            return None
        offer = self.orders.offer(order.order_id, place)
        if offer is not Offer.START:
            log.debug("order not started", order=order.order_id, why=offer.value)
            return None
        return order

    async def put_aside(self, record: ConsumerRecord, why: str) -> None:
        """Put a record among the dead letters."""
        await dead_letters.send(self.publisher, rollout_orders.TOPIC, record, why)

    async def commit(self) -> None:
        """Commit the contiguous done prefix of each partition; a commit that fails is made up for by the next."""
        ready = self.orders.offsets.commits()
        if not ready:
            return
        try:
            await self.records.commit(ready)
        except (CommitFailedError, IllegalStateError) as error:
            log.info("commit refused", why=str(error) or type(error).__name__)
        except KafkaError as error:
            log.warning("commit failed", why=str(error) or type(error).__name__)
        else:
            self.orders.offsets.committed(ready)

    async def tend(self) -> None:
        """Commit every :data:`COMMIT_S` and report a wait for orders past its bound, for ever."""
        while True:
            await asyncio.sleep(COMMIT_S)
            await self.commit()
            if self._turn.locked():
                self.waiting.check()
