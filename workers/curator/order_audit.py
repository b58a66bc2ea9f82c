"""Finds orders that can never end, and ends them as ``lost``, so that their samples are ordered again.

Moved offsets, retention, a recreated topic or a refused record can lose an order's record, an observation, a trajectory
or a derived record. A round may be interrupted anywhere; the next one starts over:

1. Take the open orders of dispatch, of proposals' checks and of recipes, with all decisions published.
2. Pass a flush barrier through all stages from the order to dispatch.
3. Orders still open at the same attempt are lost, unless another curator has taken over. Publish their finishes.

A finish is published on ``trajectories`` as any other. If the order ends after all, one of both is a repeat, so a
mistake costs one rollout.
"""

import asyncio
from collections.abc import Mapping

import structlog
from opentelemetry import metrics

from dart_streams.bus.clients import Publisher
from dart_streams.bus.flush_barrier import FlushBarrier
from dart_streams.clock import now_ms
from dart_streams.curation.lost_orders import FINDERS, STAGES, OpenOrder, finish_of
from dart_streams.telemetry import names
from dart_streams.telemetry.instruments import create_counter
from topics import trajectories
from workers.curator.durable_agent import DurableAgent

ROUND_INTERVAL_S = 5.0
NAMED = 10

log = structlog.get_logger()


class OrderAudit:
    """Audits the orders of each of ``agents`` that gives some, by its name: its durable part."""

    def __init__(self, agents: Mapping[str, DurableAgent], publisher: Publisher, barrier: FlushBarrier) -> None:
        self.agents = {name: agent for name, agent in agents.items() if name in FINDERS}
        self.publisher = publisher
        self.barrier = barrier
        self.count = create_counter(metrics.get_meter(names.METER), names.CURATOR_LOST)

    async def run(self) -> None:
        """Audit round after round, until cancelled."""
        while True:
            await asyncio.sleep(ROUND_INTERVAL_S)
            await self.round()

    async def round(self) -> None:
        """Run one round (see the module's docstring)."""
        if not (before := await self._open_orders()):
            return
        for stage in STAGES:
            await self.barrier.passed(stage)
        lost = before & await self._open_orders()
        if lost and (lost := lost & await self._open_orders(check=True)):
            await self._end(sorted(lost))

    async def _open_orders(self, *, check: bool = False) -> set[OpenOrder]:
        """Return the open orders, but for those on which this process does not decide."""
        found = set[OpenOrder]()
        for name, agent in self.agents.items():
            found = found.union(*map(FINDERS[name], await agent.published_states(check=check)))
        return found

    async def _end(self, lost: list[OpenOrder]) -> None:
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
