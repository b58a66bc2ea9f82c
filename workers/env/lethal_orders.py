"""Orders that end their worker: after :data:`LIMIT` deaths the next order is set aside, and its task rests.

An environment may end its process: by ``os._exit``, a crash in a C library, lack of memory, or a blocked event loop.
This ends the worker, and the order is delivered again. The offsets of the consumer group count the deaths by task
(:mod:`workers.runtime.death_counts`).

Concurrent tasks share the count until one of their orders is played to its end. So orders of suspects are played one
at a time, and only after the worker counts as healthy: the supervisor gives up a process that repeatedly dies early.
After the last death the order ends as ``env_error``, and so do later orders of its task during its rest. Each rest is
twice as long as the previous one, and after it a single death suffices.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

import structlog

from workers.env import metrics
from workers.env.health_gate import HealthGate, report
from workers.runtime.ordered_consumer import Delivery, OrderedConsumer

LIMIT = 3
"""Deaths of workers that played orders of a task, after which the next order is set aside."""
SUSPECT = 2
"""Deaths after which orders of a task are played one at a time."""
HEALTHY_S = 30.0
"""Minimum age of a worker that plays a suspect: its death is not early then (``QUICK_S`` of the supervisor)."""

log = structlog.get_logger()


class LethalOrders:
    """Decides about orders with which workers have died."""

    def __init__(self, orders: OrderedConsumer, gate: HealthGate, clock: Callable[[], float] = time.monotonic) -> None:
        self.orders = orders
        self.deaths = orders.deaths
        self.gate = gate
        self.clock = clock
        self.began_s = clock()
        self._alone = asyncio.Lock()
        self._known: set[str] = set()

    def refusal(self, delivery: Delivery, task_id: str) -> str:
        """Return why an order is set aside, empty if it is not; its task then rests."""
        if self.gate.health.refusal(task_id, self.clock()):
            return ""
        died, lethal = self.deaths.deaths.get(task_id, 0), self.deaths.lethal.get(task_id, 0)
        if died >= (1 if lethal else LIMIT):
            reason = f"set aside: orders of its task have ended their worker {died} times (see `deaths` of the report)"
            log.error("order set aside", order=delivery.event.order_id, task=task_id, reason=reason)
            metrics.orders_set_aside.add(1)
            self._rest(task_id, self.deaths.add_lethal(task_id))
            return reason
        if lethal and task_id not in self._known:
            self._rest(task_id, lethal)
        return ""

    @contextlib.asynccontextmanager
    async def turn(self, delivery: Delivery, task_id: str) -> AsyncIterator[None]:
        """Wait until an order of a suspect can be played alone, and record its beginning."""
        if self.deaths.deaths.get(task_id, 0) < SUSPECT and task_id not in self.deaths.lethal:
            await self.orders.begin(delivery, task_id)
            yield
            return
        async with self._alone:
            await asyncio.sleep(max(0.0, self.began_s + HEALTHY_S - self.clock()))
            await self.orders.begin(delivery, task_id)
            yield

    def _rest(self, task_id: str, times: int) -> None:
        self._known.add(task_id)
        reason = f"its orders have ended their worker again and again ({times} times set aside)"
        report(self.gate.health.ended_workers(task_id, times, reason, self.clock()))
