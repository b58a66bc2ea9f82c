"""Audit of the orders that the supervisor waits for: orders that can never end are ended as ``lost``.

The audit covers evaluations and demonstrations, and all others once the curator (which audits them in
``workers/curator/order_audit.py``) is stopped. Its barrier ends at the trajectories that this process has read.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import structlog
from aiokafka.errors import KafkaError

from console.runs import open_orders
from console.runs.run_follower import RunFollower
from dart_streams.background import run_beside, wait_at_most
from dart_streams.bus.clients import Publisher, has_reached
from dart_streams.bus.flush_barrier import FlushBarrier
from dart_streams.bus.lag import lag_reader
from dart_streams.clock import now_ms
from dart_streams.curation.lost_orders import PLAYED, OpenOrder, finish_of, select_fields
from dart_streams.errors import ServiceUnavailable
from topics import trajectories

ROUND_INTERVAL_S = 5.0
POLL_INTERVAL_S = 0.2
AWAITED = ("eval", "demonstration")
"""Purposes of orders that the supervisor gives; the others are the curator's."""

log = structlog.get_logger()


class AwaitedOrderAudit:
    """Audits evaluation and demonstration orders, and all others once ``settles`` is set."""

    def __init__(self, follower: RunFollower, publisher: Publisher) -> None:
        self.follower = follower
        self.publisher = publisher
        self.settles = False

    def open_orders(self) -> set[OpenOrder]:
        """Return the orders that have not ended."""
        orders = open_orders.unfinished_orders(self.follower.progress)
        return select_fields(order for order in orders if self.settles or order.purpose in AWAITED)

    async def round(self) -> None:
        """Pass a barrier from the orders to the follower, and publish the finish of orders that are still open."""
        before = self.open_orders()
        async with lag_reader(self.publisher.bus) as offsets:
            barrier = FlushBarrier(offsets, log, self.follower.stall_s)
            for stage in PLAYED:
                await barrier.passed(stage)
        await self.read_on()
        lost = sorted(before & self.open_orders())
        for order in lost:
            finish = finish_of(self.publisher.bus.run, order, now_ms())
            await self.publisher.publish(trajectories.TOPIC, finish, record_id=finish.trajectory_id)

    async def read_on(self) -> None:
        """Return when the follower has read the present trajectories."""
        name = self.publisher.bus.prefix + trajectories.TOPIC.name
        records = self.follower.records
        ends = await records.end_offsets([one for one in records.assignment() if one.topic == name])
        while True:
            now = await records.end_offsets(ends)  # a recreated topic has lower ones
            if await has_reached(records, {partition: min(end, now[partition]) for partition, end in ends.items()}):
                return
            await wait_at_most(self.follower.changed, POLL_INTERVAL_S)


@contextlib.asynccontextmanager
async def audit_orders(
    follower: RunFollower, publisher: Publisher, notify: Callable[[str], None]
) -> AsyncIterator[AwaitedOrderAudit]:
    """Audit in the background while the body lasts."""
    audit = AwaitedOrderAudit(follower, publisher)
    async with run_beside(keep_auditing(audit, notify)):
        yield audit


async def keep_auditing(audit: AwaitedOrderAudit, notify: Callable[[str], None]) -> None:
    """Audit until cancelled, waiting for an unavailable broker; show the number of lost orders when it grows."""
    shown = audit.follower.progress.lost
    while True:
        await asyncio.sleep(ROUND_INTERVAL_S)
        if (count := audit.follower.progress.lost) > shown:
            notify(
                f"{count - shown} orders were lost ({count} in all) and are ordered again: offsets were moved, records "
                "removed, or a reader refused some; see the logs of curator and recorder, and dead letters"
            )
        shown = count
        try:
            if audit.open_orders():
                await audit.round()
        except (ServiceUnavailable, KafkaError, OSError) as error:
            log.warning("orders not audited", reason=str(error) or type(error).__name__)
