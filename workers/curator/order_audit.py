"""Finds the orders that can never end, and ends them as ``lost``, so that their samples are ordered again.

An order is lost with its record, an observation, its trajectory or what was made of it: by offsets that somebody moved,
by retention, by a topic that was made anew, by a record that its reader refuses. Each round is as follows; it can be
cut off anywhere, and the next one begins with the first step.

1. Take dispatch's open orders, all decisions published.
2. Pass a flush barrier through all stages from the order to dispatch.
3. What is open still at the same attempt is lost, unless another curator decides by now. Publish its finish.

A finish is published as any other, on ``trajectories``. That of an order which ends all the same is a repeat, or makes
one of the true finish; so a round that was mistaken costs a rollout, and nothing else.
"""

import asyncio

import structlog
from opentelemetry import metrics

from dart_streams.bus.clients import Publisher
from dart_streams.bus.flush_barrier import FlushBarrier
from dart_streams.clock import now_ms
from dart_streams.curation.lost_orders import STAGES, OpenOrder, finish_of, open_orders
from dart_streams.telemetry import names
from topics import trajectories
from workers.curator.agent_runner import AgentRunner

ROUND_INTERVAL_S = 5.0
"""Time between two rounds."""
NAMED = 10
"""Lost orders that a line of the log names."""

log = structlog.get_logger()


class OrderAudit:
    """Audits the orders of ``dispatch``, the runner of that agent."""

    def __init__(self, dispatch: AgentRunner, publisher: Publisher, barrier: FlushBarrier) -> None:
        self.dispatch = dispatch
        self.publisher = publisher
        self.barrier = barrier
        self.count = metrics.get_meter(names.METER).create_counter(names.CURATOR_LOST)

    async def run(self) -> None:
        """Audit round after round, until cancelled."""
        while True:
            await asyncio.sleep(ROUND_INTERVAL_S)
            await self.round()

    async def round(self) -> None:
        """Make one round, as the module's docstring has it."""
        if not (before := await self._open_orders()):
            return
        for stage in STAGES:
            await self.barrier.passed(stage)
        lost = before & await self._open_orders()
        if lost and (lost := lost & await self._open_orders(check=True)):
            await self._end(sorted(lost))

    async def _open_orders(self, *, check: bool = False) -> set[OpenOrder]:
        """Return the open orders; none if this process does not decide on them now."""
        state = await self.dispatch.published_state(check=check)
        return open_orders(state) if state is not None else set()

    async def _end(self, lost: list[OpenOrder]) -> None:
        """Publish the finishes of lost orders."""
        log.warning(
            "orders lost",
            orders=[order.order_id for order in lost[:NAMED]],
            count=len(lost),
            reason="all that came of them is processed, and they have not ended",
            effect="they are ordered again, three attempts in all",
        )
        run = self.publisher.bus.run
        for order in lost:
            finish = finish_of(run, order, now_ms())
            await self.publisher.publish(trajectories.TOPIC, finish, record_id=finish.trajectory_id)
        self.count.add(len(lost))
