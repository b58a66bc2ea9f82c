"""Slots when a handler fails or does not finish. Delivery and commits are tested on a real broker."""

import asyncio
from types import SimpleNamespace

import msgspec
import pytest
from aiokafka import TopicPartition

from dart_streams.config import parse
from dart_streams.errors import ServiceUnavailable
from tests import events
from tests.unit.clockwork import by_clockwork
from topics import rollout_orders
from topics.rollout_orders import RolloutOrder
from workers.runtime.in_flight import TrackedOffset
from workers.runtime.ordered_consumer import Delivery, OrderedConsumer

ORDER = events.rollout_order()


class Numbered(OrderedConsumer):
    """Delivers orders 0, 1, ... of alternating partitions, as many as asked for; commits nowhere."""

    def __init__(self, count: int) -> None:
        super().__init__(parse({"run": {"drain_s": 0.2}}), "env-0", None, rollout_orders.TOPIC, "order_id", "env")
        self.places = [TopicPartition("orders", partition) for partition in (0, 1)]
        self.records.assign(self.places)
        self.left = list(range(count))

    async def _read(self) -> Delivery:
        if not self.left:
            await asyncio.Event().wait()
        number = self.left.pop(0)
        place = self.places[number % 2]
        self.records.deliver(str(number), TrackedOffset(place, number))
        order = msgspec.structs.replace(ORDER, order_id=str(number))
        return Delivery(order, SimpleNamespace(topic=place.topic, partition=place.partition))

    async def commit(self, *, given_up: bool = False) -> None:
        self.committable = self.records.offsets.commits()


@by_clockwork
async def test_what_ends_a_handler_for_good_ends_the_consumer_as_it_is():
    async def handle(slot: int, delivery: Delivery) -> None:
        raise ServiceUnavailable("no broker")

    async with asyncio.timeout(5):
        with pytest.raises(ServiceUnavailable, match="no broker"):
            await Numbered(1).serve(handle, 2, asyncio.Event())


@pytest.mark.parametrize(("takes_s", "committed"), [(0.01, 1), (1000.0, 0)])
@by_clockwork
async def test_a_handler_is_committed_if_it_finishes_within_the_drain(takes_s, committed):
    consumer, stop, finished = Numbered(1), asyncio.Event(), asyncio.Event()

    async def handle(slot: int, delivery: Delivery) -> None:
        stop.set()
        try:
            await asyncio.sleep(takes_s)
        finally:
            finished.set()

    async with asyncio.timeout(5):
        await consumer.serve(handle, 2, stop)
    assert finished.is_set()
    assert consumer.committable == {consumer.places[0]: committed}


@by_clockwork
async def test_records_are_read_ahead_up_to_a_bound_in_order():
    consumer, stop, let_go = Numbered(6), asyncio.Event(), asyncio.Event()
    expected: list[str] = []
    handled: list[str] = []
    two = asyncio.Event()
    most = 0

    def expect(order: RolloutOrder) -> None:
        nonlocal most
        expected.append(order.order_id)
        if order.order_id == "2":
            two.set()
        most = max(most, len(expected) - len([name for name in handled if name in expected]))

    async def handle(slot: int, delivery: Delivery) -> None:
        handled.append(delivery.event.order_id)
        if len(handled) == 6:
            stop.set()
        if delivery.event.order_id == "0":
            await let_go.wait()

    reading = asyncio.create_task(consumer.read_ahead(2, expect))
    serving = asyncio.create_task(consumer.serve(handle, 1, stop))
    async with asyncio.timeout(5):
        await two.wait()
        assert handled == ["0"]
        let_go.set()
        await serving
    reading.cancel()
    assert handled == list("012345")
    assert most <= 3  # Two at hand, and one that a slot is about to take.
    assert consumer.records.in_flight == {}


@by_clockwork
async def test_a_record_read_ahead_of_a_revoked_partition_is_dropped():
    consumer, stop = Numbered(2), asyncio.Event()
    two = asyncio.Event()
    reading = asyncio.create_task(consumer.read_ahead(2, lambda order: order.order_id == "1" and two.set()))
    async with asyncio.timeout(5):
        await two.wait()
        await consumer.on_partitions_revoked([consumer.places[0]])
        handled: list[str] = []

        async def handle(slot: int, delivery: Delivery) -> None:
            handled.append(delivery.event.order_id)
            stop.set()

        await consumer.serve(handle, 1, stop)
    reading.cancel()
    assert handled == ["1"]
    assert consumer.records.in_flight == {}
