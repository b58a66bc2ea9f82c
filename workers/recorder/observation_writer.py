"""Writes batches of observations, and announces the trajectories that end in them.

The delivery guarantee: a batch is done in four steps, each durable before the next. (1) Every step's row is written.
(2) Of each trajectory that ends, the steps are read back and its summary is written. (3) The trajectory is announced.
(4) The batch's offsets are committed, by the caller. A crash before (4) has the batch delivered again, and its effects,
which are idempotent by id, repeated.
"""

import asyncio
import time
from collections.abc import Sequence

import structlog
from aiokafka import ConsumerRecord
from opentelemetry import metrics

from dart_streams.bus import dead_letters
from dart_streams.bus.clients import Publisher, event_of
from dart_streams.bus.codec import Undecodable
from dart_streams.store import AsyncStore
from dart_streams.telemetry import names
from dart_streams.telemetry.instruments import ObservedCounter
from dart_streams.telemetry.spans import ActiveSpan, UseSpan, context_of
from topics import observations, trajectories
from topics.observations import Observation
from topics.trajectories import Trajectory
from workers.recorder.trajectory_summary import Incomplete, broken, summarise
from workers.runtime.ordered_consumer import Delivery

log = structlog.get_logger()
meter = metrics.get_meter(names.METER)
steps_written = ObservedCounter(meter, names.RECORDER_STEPS)
announced = ObservedCounter(meter, names.RECORDER_TRAJECTORIES)
write_ms = meter.create_histogram(names.RECORDER_WRITE_MS, "ms")


class ObservationWriter:
    """Writes to the store, then announces; commits nothing."""

    def __init__(self, store: AsyncStore, publisher: Publisher) -> None:
        self.store = store
        self.publisher = publisher

    async def write(self, records: Sequence[ConsumerRecord]) -> set[str]:
        """Do steps 1 to 3 for a batch; return the environment hosts it came from."""
        batch = await self._decode(records)
        await asyncio.gather(*(self._write_step(item) for item in batch))
        ends = {item.event.trajectory_id: item for item in batch if item.event.end is not None}
        await asyncio.gather(*(self._announce(item) for item in ends.values()))
        return {item.event.env_host for item in batch}

    async def _decode(self, records: Sequence[ConsumerRecord]) -> list[Delivery]:
        batch: list[Delivery] = []
        for record in records:
            try:
                batch.append(Delivery(event_of(observations.TOPIC, record), record))
            except Undecodable as error:
                await dead_letters.send(self.publisher, observations.TOPIC, record, str(error))
        return batch

    async def _write_step(self, item: Delivery) -> None:
        started = time.perf_counter()
        observation: Observation = item.event
        attributes = {names.ATTR_TRAJECTORY: observation.trajectory_id, names.ATTR_STEP: observation.step}
        with ActiveSpan(names.SPAN_RECORD, parent=context_of(item.record.headers), attributes=attributes):
            await self.store.write_step(observation)
        write_ms.record((time.perf_counter() - started) * 1000)
        steps_written.add(1)

    async def _announce(self, item: Delivery) -> None:
        trajectory = await self._summary(item)
        await self.store.write_trajectory(trajectory)
        # A cancelled episode's order is delivered again: announcing it would count as the order's finish.
        if trajectory.outcome == "cancelled":
            return
        with UseSpan(context_of(item.record.headers)):
            await self.publisher.publish(trajectories.TOPIC, trajectory, record_id=trajectory.trajectory_id)
        announced.add(1, {"outcome": trajectory.outcome})

    async def _summary(self, item: Delivery) -> Trajectory:
        trajectory_id = item.event.trajectory_id
        try:
            return summarise(await self.store.steps(trajectory_id))
        except Incomplete as gap:
            reason = f"trajectory {trajectory_id}: {gap}"
            await dead_letters.send(self.publisher, observations.TOPIC, item.record, reason)
            return broken(item.event, reason)
