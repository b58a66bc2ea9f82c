"""Applies a worker's health: resting slots get no order, and a drained host leaves the consumer group.

The group's other workers get its orders meanwhile. After its return it plays one order at a time until a reset
succeeds. On a single host orders wait instead of failing.
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
"""Time for which an order of a task that is set aside is held: dispatch replaces a failed group at once."""
BEGINNINGS = {"slot": "slot rests", "task": "task set aside", "host": "host drained"}

log = structlog.get_logger()


class HealthGate(Gate):
    """Records results of resets, and holds orders back as :class:`~workers.env.health.WorkerHealth` decides."""

    def __init__(self, health: WorkerHealth, clock: Callable[[], float] = time.monotonic) -> None:
        self.health = health
        self.clock = clock
        self._drained = asyncio.Event()
        self._playing = 0
        self._changed = asyncio.Event()

    async def slot_ready(self, slot: int) -> None:
        """Wait until a slot does not rest."""
        await asyncio.sleep(self.health.slot_rest_s(slot, self.clock()))

    async def may_read(self) -> None:
        """Wait while the host is drained, or on trial with an order in play."""
        while self._drained.is_set() or (self.health.on_trial and self._playing):
            self._changed.clear()
            await self._changed.wait()

    @contextlib.contextmanager
    def playing(self) -> Iterator[None]:
        """Record that an order is in play within the block."""
        self._playing += 1
        try:
            yield
        finally:
            self._playing -= 1
            self._changed.set()

    def note_reset(self, slot: int, task_id: str, reason: str) -> None:
        """Record the result of a reset; ``reason`` is empty after a success."""
        if not reason:
            if self.health.on_trial:
                log.info("host takes orders again", reason=f"a reset of {task_id} succeeded")
            self.health.reset_succeeded(slot, task_id, self.clock())
            self._changed.set()
        else:
            for rest in self.health.reset_failed(slot, task_id, reason, self.clock()):
                report(rest)
                if rest.kind == "host":
                    self._drained.set()
        metrics.fault_score.set(self.health.host.score)

    async def refusal(self, task_id: str) -> str:
        """Return why an order is rejected, after a delay, or empty at once if it is played."""
        if reason := self.health.refusal(task_id, self.clock()):
            await asyncio.sleep(REFUSAL_S)
        return reason

    async def watch(self, orders: OrderedConsumer, limit_s: float) -> None:
        """Leave the group when the host is drained and its episodes have ended; join it again after the rest."""
        while True:
            await self._drained.wait()
            await orders.leave(limit_s)
            await asyncio.sleep(max(0.0, self.health.host.rests_until_s - self.clock()))
            await orders.join()
            self._drained.clear()
            self._changed.set()
            log.info("host tries an order again", reason=self.health.host.reason)


def report(rest: Rest) -> None:
    """Log a rest that begins, and count it."""
    metrics.rests.add(1, {"kind": rest.kind})
    reason = rest.reason if rest.lethal else f"{rest.failures} resets failed in a row, the last: {rest.reason}"
    named = {rest.kind: rest.name} if rest.name else {}
    log.warning(BEGINNINGS[rest.kind], **named, rest_s=rest.rest_s, reason=reason)
