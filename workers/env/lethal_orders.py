"""Orders that end their worker: one that has done so :data:`LIMIT` times is set aside, and its task for a while.

An environment whose process dies (``os._exit``, a crash in a C library, all memory taken, a call that blocks the event
loop for ever) takes the worker with it, and the order is delivered again. How often is in the offsets of the consumer
group (:mod:`workers.runtime.death_counts`).

Orders that were beside it share the blame at first. So suspects, and other orders of their tasks, are played one at a
time, and not before the worker has lived long enough to count as healthy: the supervisor gives up a process that dies
early several times in a row. After the last death the order ends as ``env_error``. Later orders of its task end so too
while the task rests; each rest is twice as long as the one before, and after it a single death is enough.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

import structlog

from workers.env import metrics
from workers.env.health_gate import HealthGate
from workers.runtime.ordered_consumer import Delivery, OrderedConsumer

LIMIT = 3
"""Deaths of workers with an order in their hands after which it is set aside."""
SUSPECT = 2
"""Deaths after which an order is played alone."""
HEALTHY_S = 30.0
"""How long a worker lives before it plays a suspect: then its death is no early one (``QUICK_S`` of the supervisor)."""

log = structlog.get_logger()


class LethalOrders:
    """Decides what becomes of orders with which workers have died."""

    def __init__(self, orders: OrderedConsumer, gate: HealthGate, clock: Callable[[], float] = time.monotonic) -> None:
        self.orders = orders
        self.gate = gate
        self.clock = clock
        self.began_s = clock()
        self._alone = asyncio.Lock()
        self._known: set[str] = set()
        self._suspected: set[str] = set()
        """Tasks with suspects, none of which this worker has survived yet."""

    def refusal(self, delivery: Delivery, task_id: str) -> str:
        """Return why an order is set aside, empty if it is not; its task then rests, and its other orders with it."""
        if self.gate.health.refusal(task_id, self.clock()):
            return ""
        deaths, lethal = self.orders.deaths_with(delivery), self._lethal(task_id)
        if deaths >= (1 if lethal else LIMIT):
            reason = (
                f"set aside: it has ended its worker {deaths} times (the worker's log and the report's list of deaths "
                "say how)"
            )
            log.error("order set aside", order=delivery.event.order_id, task=task_id, reason=reason)
            metrics.orders_set_aside.add(1)
            self._rest(task_id, self._count(task_id))
            return reason
        if lethal and task_id not in self._known:
            self._rest(task_id, lethal)
        return ""

    @contextlib.asynccontextmanager
    async def turn(self, delivery: Delivery, task_id: str) -> AsyncIterator[None]:
        """Hold a suspect back until it can be played alone, and write down that the order is begun."""
        if self.orders.deaths_with(delivery) >= SUSPECT:
            self._suspected.add(task_id)
        if task_id not in self._suspected and not self._lethal(task_id):
            await self.orders.begin(delivery)
            yield
            return
        async with self._alone:
            await asyncio.sleep(max(0.0, self.began_s + HEALTHY_S - self.clock()))
            await self.orders.begin(delivery)
            yield
            self._suspected.discard(task_id)

    def _lethal(self, task_id: str) -> int:
        return 0 if self.orders.deaths is None else self.orders.deaths.lethal.get(task_id, 0)

    def _count(self, task_id: str) -> int:
        return 1 if self.orders.deaths is None else self.orders.deaths.add_lethal(task_id)

    def _rest(self, task_id: str, times: int) -> None:
        self._known.add(task_id)
        self.gate.set_aside(task_id, times, f"orders of it have ended their worker {times} times over")
