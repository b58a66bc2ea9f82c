"""The slots of an environment worker: each takes an order when it is free, and plays it to its end."""

import asyncio

import structlog

from dart_streams.config import Config
from dart_streams.errors import ConfigError
from dart_streams.tasks import TaskSet
from workers.env.episode_runner import EpisodeRunner
from workers.env.metrics import SlotTimes
from workers.env.order_consumer import OrderConsumer, TakenOrder

log = structlog.get_logger()

MARGIN_S = 3.0
"""So much of the drain is kept for telling the ends of episodes cut short, the last commit, and the browser."""


class Slots:
    """All slots of this process."""

    def __init__(self, config: Config, player: EpisodeRunner, intake: OrderConsumer, tasks: TaskSet) -> None:
        self.count = config.env.slots
        self.grace_s = max(config.run.drain_s - MARGIN_S, config.run.drain_s / 2)
        self.player = player
        self.intake = intake
        self.tasks = tasks
        self.times = SlotTimes(self.count)
        self._idle: set[asyncio.Task[None]] = set()

    async def serve(self, stop: asyncio.Event) -> None:
        """Play orders until ``stop`` is set, and then those under way while the drain allows.

        An episode that does not end in time is told as ``cancelled`` for those who watch, but its order is not
        committed: the group delivers it again, and it counts as not yet finished.
        """
        slots = {asyncio.create_task(self._slot(index, stop)) for index in range(self.count)}
        stopped = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait({stopped, *slots}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            await self._drain(slots)
        finally:
            for task in (stopped, *slots):
                task.cancel()
        await self.intake.commit()

    async def _drain(self, slots: set[asyncio.Task[None]]) -> None:
        log.info("draining", episodes=self.times.busy, grace_s=self.grace_s)
        for slot in self._idle:
            slot.cancel()
        _, late = await asyncio.wait(slots, timeout=self.grace_s)
        for slot in late:
            slot.cancel()
        if late:
            log.info("episodes cut short", episodes=len(late), why="the drain is over; their orders go back")
        for result in await asyncio.gather(*slots, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    async def _slot(self, index: int, stop: asyncio.Event) -> None:
        this = asyncio.current_task()
        assert this is not None
        while not stop.is_set():
            self.times.enter(index, "idle")
            self._idle.add(this)
            taken = await self.intake.take()
            self._idle.discard(this)
            await self._play(index, taken)
        self.times.enter(index, "idle")

    async def _play(self, index: int, taken: TakenOrder) -> None:
        order = taken.order
        try:
            task = self.tasks.get(order.task_id)
        except ConfigError as unknown:
            await self.intake.put_aside(taken.record, str(unknown))
            await self.player.refuse(order, str(unknown))
        else:
            await self.player.play(order, task, lambda state: self.times.enter(index, state))
        self.intake.orders.end(order.order_id)
