"""The slots of an environment worker: each takes an order when it is idle, and plays it to its end."""

import asyncio

from dart_streams.errors import ConfigError
from dart_streams.tasks import TaskSet
from topics.rollout_orders import RolloutOrder
from workers.env.episode_runner import EpisodeRunner
from workers.env.metrics import SlotTimes
from workers.runtime.ordered_consumer import Delivery, OrderedConsumer


class Slots:
    """All slots of this process."""

    def __init__(self, count: int, runner: EpisodeRunner, orders: OrderedConsumer, tasks: TaskSet) -> None:
        self.runner = runner
        self.orders = orders
        self.tasks = tasks
        self.times = SlotTimes(count)
        self.count = count

    async def serve(self, stop: asyncio.Event) -> None:
        """Play orders until ``stop`` is set, then those in flight.

        An episode that does not end within the drain is published as ``cancelled``, but its order is not committed: the
        group delivers it again, and its rollout is still missing.
        """
        await self.orders.serve(self._play, self.count, stop)

    async def _play(self, slot: int, delivery: Delivery) -> None:
        order: RolloutOrder = delivery.event
        try:
            task = self.tasks.get(order.task_id)
        except ConfigError as error:
            await self.orders.dead_letter(delivery.record, str(error))
            await self.runner.reject(order, str(error))
        else:
            await self.runner.run(order, task, lambda state: self.times.enter(slot, state))
        self.times.enter(slot, "idle")
