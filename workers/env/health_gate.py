"""The health of a worker in effect: slots that rest are given no order, a drained host leaves the consumer group.

Its orders go to the other workers of the group meanwhile. Back in the group it is given one order at a time, until the
reset of one succeeds. On a single host orders wait for it, which is better than to play them all as faults.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator

import structlog

from workers.env import metrics
from workers.env.health import Rest, WorkerHealth
from workers.runtime.ordered_consumer import Gate, OrderedConsumer

REFUSAL_S = 1.0
"""How long an order of a task that is set aside is held: dispatch would open its next group as fast as one fails."""

log = structlog.get_logger()


class HealthGate(Gate):
    """Notes how resets end, and holds back what :class:`~workers.env.health.WorkerHealth` says."""

    def __init__(self, health: WorkerHealth, clock: Callable[[], float] = time.monotonic) -> None:
        self.health = health
        self.clock = clock
        self._drained = asyncio.Event()
        self._playing = 0
        self._news = asyncio.Event()

    async def slot_ready(self, slot: int) -> None:
        """Return when a slot does not rest."""
        await asyncio.sleep(self.health.slot_rest_s(slot, self.clock()))

    async def may_read(self) -> None:
        """Return at once; not while the host is drained, and on trial when no order is being played."""
        while self._drained.is_set() or (self.health.on_trial and self._playing):
            self._news.clear()
            await self._news.wait()

    @contextlib.contextmanager
    def playing(self) -> Iterator[None]:
        """Note that an order is played meanwhile."""
        self._playing += 1
        try:
            yield
        finally:
            self._playing -= 1
            self._news.set()

    def note_reset(self, slot: int, task_id: str, reason: str) -> None:
        """Note how a reset ended: ``reason`` is empty if it gave a screen."""
        if not reason:
            if self.health.on_trial:
                log.info("host takes orders again", reason=f"a reset of {task_id} succeeded")
            self.health.reset_succeeded(slot, task_id, self.clock())
            self._news.set()
        else:
            for rest in self.health.reset_failed(slot, task_id, reason, self.clock()):
                report(rest)
                if rest.kind == "host":
                    self._drained.set()
        metrics.fault_score.set(self.health.host.score)

    def set_aside(self, task_id: str, times: int, reason: str) -> None:
        """Let a task rest of which ``times`` orders have ended their workers again and again."""
        report(self.health.ended_workers(task_id, times, reason, self.clock()))

    async def refusal(self, task_id: str) -> str:
        """Return why an order of a task is not played, after a while; empty at once if it is played."""
        if reason := self.health.refusal(task_id, self.clock()):
            await asyncio.sleep(REFUSAL_S)
        return reason

    async def watch(self, orders: OrderedConsumer, limit_s: float) -> None:
        """Leave the group whenever the host is drained, once its episodes have ended, and join it after the rest."""
        while True:
            await self._drained.wait()
            await orders.leave(limit_s)
            await asyncio.sleep(max(0.0, self.health.host.rests_until_s - self.clock()))
            await orders.join()
            self._drained.clear()
            self._news.set()
            log.info("host tries an order again", reason=self.health.host.reason)


def report(rest: Rest) -> None:
    """Log a rest that begins, and count it."""
    metrics.rests.add(1, {"kind": rest.kind})
    why = rest.reason if rest.lethal else f"{rest.failures} resets failed in a row, the last: {rest.reason}"
    match rest.kind:
        case "slot":
            log.warning("slot rests", slot=rest.name, rest_s=rest.rest_s, reason=why)
        case "task":
            log.warning("task set aside", task=rest.name, rest_s=rest.rest_s, reason=why)
        case _:
            log.warning("host drained", rest_s=rest.rest_s, reason=why)
