"""Slots when a handler fails or does not finish. Delivery and commits are tested on a real broker."""

import asyncio

import pytest
from aiokafka import TopicPartition

from dart_streams.config import parse
from dart_streams.errors import ServiceUnavailable
from topics import rollout_orders
from topics.rollout_orders import RolloutOrder
from topics.values import Sampling
from workers.runtime.in_flight import TrackedOffset
from workers.runtime.ordered_consumer import Delivery, OrderedConsumer

PLACE = TopicPartition("orders", 0)
ORDER = RolloutOrder(
    order_id="o",
    group_id="g",
    group_size=1,
    sample=0,
    attempt=0,
    task_id="t",
    max_steps=1,
    purpose="train",
    sampling=Sampling(),
    after_version=0,
)


class OneRecord(OrderedConsumer):
    """Delivers one record, and then waits; commits nowhere."""

    given = False

    async def _take(self) -> Delivery:
        if self.given:
            await asyncio.Event().wait()
        self.given = True
        self.records.assign([PLACE])
        self.records.deliver("o", TrackedOffset(PLACE, 4))
        return Delivery(ORDER, record=None)

    async def commit(self) -> None:
        self.committable = self.records.offsets.commits()


def one_record() -> OneRecord:
    config = parse({"run": {"drain_s": 0.2}})
    return OneRecord(config, "env-0", None, rollout_orders.TOPIC, "order_id", "env")


async def test_what_ends_a_handler_for_good_ends_the_consumer_as_it_is():
    async def handle(slot: int, delivery: Delivery) -> None:
        raise ServiceUnavailable("no broker")

    async with asyncio.timeout(5):
        with pytest.raises(ServiceUnavailable, match="no broker"):
            await one_record().serve(handle, 2, asyncio.Event())


async def test_a_handler_that_finishes_within_the_drain_is_committed():
    consumer, stop = one_record(), asyncio.Event()

    async def handle(slot: int, delivery: Delivery) -> None:
        stop.set()
        await asyncio.sleep(0.01)

    async with asyncio.timeout(5):
        await consumer.serve(handle, 2, stop)
    assert consumer.committable == {PLACE: 5}


async def test_a_handler_that_does_not_finish_within_the_drain_is_cancelled_and_not_committed():
    consumer, stop, cancelled = one_record(), asyncio.Event(), asyncio.Event()

    async def handle(slot: int, delivery: Delivery) -> None:
        stop.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with asyncio.timeout(5):
        await consumer.serve(handle, 2, stop)
    assert cancelled.is_set()
    assert consumer.committable == {PLACE: 4}
