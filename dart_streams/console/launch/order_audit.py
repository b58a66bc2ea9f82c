"""Finds the orders that the supervisor waits for and that can never end, and ends them as ``lost``; shows how many.

Evaluations and demonstrations are audited here always, as training's orders are in ``workers/curator/order_audit.py``;
training's too once the curator is stopped. The barrier goes up to the trajectories that this process has read.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import structlog
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from dart_streams.bus.clients import Publisher, has_reached
from dart_streams.bus.flush_barrier import FlushBarrier
from dart_streams.bus.lag import lag_reader
from dart_streams.clock import now_ms
from dart_streams.console.runs import open_orders
from dart_streams.console.runs.run_follower import RunFollower
from dart_streams.curation.lost_orders import PLAYED, OpenOrder, finish_of, select_fields
from dart_streams.errors import ServiceUnavailable
from topics import trajectories

PAUSE_S = 5.0
"""Time between two rounds."""
READ_S = 0.2

log = structlog.get_logger()


class AwaitedOrderAudit:
    """Audits the orders that a follower knows: evaluations and demonstrations, and training's once that ``settles``."""

    def __init__(self, follower: RunFollower, publisher: Publisher) -> None:
        self.follower = follower
        self.publisher = publisher
        self.settles = False

    def open_orders(self) -> set[OpenOrder]:
        """Return the orders that have not ended."""
        orders = open_orders.unfinished_orders(self.follower.progress)
        return select_fields(order for order in orders if self.settles or order.purpose != "train")

    async def round(self) -> None:
        """Pass a barrier from the orders to the follower, and publish the finish of what is open still."""
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
        """Return when the follower has read the trajectories that there are now."""
        name = self.publisher.bus.prefix + trajectories.TOPIC.name
        records = self.follower.records
        ends = await records.end_offsets([one for one in records.assignment() if one.topic == name])
        while not await has_reached(records, shrunk_to(ends, await records.end_offsets(ends))):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(READ_S):
                    await self.follower.changed.wait()


def shrunk_to(ends: dict[TopicPartition, int], now: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the ends to wait for; a topic that was made anew has less."""
    return {partition: min(end, now[partition]) for partition, end in ends.items()}


class LostOrders:
    """Shows at the terminal how many orders were lost, when the number grows."""

    def __init__(self, follower: RunFollower, notify: Callable[[str], None]) -> None:
        self.follower = follower
        self.notify = notify
        self.shown = follower.progress.lost

    def show(self) -> None:
        """Show the number if it has grown."""
        if (count := self.follower.progress.lost) > self.shown:
            self.notify(
                f"{count - self.shown} orders were lost ({count} in all) and are ordered again: somebody moved offsets "
                "or removed records, or a reader refused some; the logs of curator and recorder, and dead letters, "
                "say more"
            )
        self.shown = count


@contextlib.asynccontextmanager
async def audit_orders(
    follower: RunFollower, publisher: Publisher, notify: Callable[[str], None]
) -> AsyncIterator[AwaitedOrderAudit]:
    """Audit in the background while the body lasts."""
    audit = AwaitedOrderAudit(follower, publisher)
    task = asyncio.create_task(keep_auditing(audit, LostOrders(follower, notify)), name="audit orders")
    try:
        yield audit
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def keep_auditing(audit: AwaitedOrderAudit, lost: LostOrders) -> None:
    """Audit round after round, until cancelled; a broker that is away is waited for."""
    while True:
        await asyncio.sleep(PAUSE_S)
        lost.show()
        try:
            if audit.open_orders():
                await audit.round()
        except (ServiceUnavailable, KafkaError, OSError) as error:
            log.warning("orders not audited", reason=str(error) or type(error).__name__)
