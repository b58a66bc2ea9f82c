"""Who watches a run to its end has seen its last record."""

import pytest

from dart_streams.bus.clients import Publisher
from dart_streams.run.watch import watching
from topics import rollout_orders
from topics.rollout_orders import RolloutOrder
from topics.values import Sampling

NUMBER = 50


@pytest.fixture
def bus(services):
    return services.config().bus


def order(number: int) -> RolloutOrder:
    return RolloutOrder(
        order_id=f"o{number}",
        group_id=f"g{number}",
        group_size=1,
        sample=0,
        attempt=0,
        task_id=f"simulated/box#{number}",
        max_steps=9,
        purpose="train",
        sampling=Sampling(),
        after_version=0,
    )


async def test_what_was_published_just_before_the_end_is_seen(bus):
    async with Publisher(bus, "test") as publisher, watching(bus, publisher, 60) as watch:
        for number in range(NUMBER):
            await publisher.publish(rollout_orders.TOPIC, order(number))
        await watch.finish()
        seen = set(watch.progress.orders)
        await publisher.publish(rollout_orders.TOPIC, order(NUMBER))
    assert seen == {f"o{number}" for number in range(NUMBER)}
    assert set(watch.progress.orders) == seen
