"""Writes batches of observations, and announces the trajectories that end in them.

A batch is done in four steps, each durable before the next: (1) every step's row; (2) of each trajectory that ends,
the steps read back and its summary written; (3) its announcement; (4) the batch's offsets. Whoever dies in between
has the batch delivered again and repeats effects that are idempotent by id.
"""

import asyncio
import time
from collections.abc import Sequence

import msgspec
import structlog
from aiokafka import ConsumerRecord
from opentelemetry import metrics

from dart_streams.bus import dead_letters
from dart_streams.bus.clients import Publisher, event_of
from dart_streams.bus.codec import Undecodable
from dart_streams.store import AsyncStore
from dart_streams.telemetry import names
from dart_streams.telemetry.instruments import ObservedCounter
from dart_streams.telemetry.propagation import context_of
from dart_streams.telemetry.spans import ActiveSpan, UseSpan
from topics import observations, trajectories
from topics.observations import Observation
from topics.trajectories import Trajectory
from workers.recorder.trajectory_summary import Incomplete, broken, summarise

log = structlog.get_logger()
meter = metrics.get_meter(names.METER)
steps_written = ObservedCounter(meter, names.RECORDER_STEPS)
announced = ObservedCounter(meter, names.RECORDER_TRAJECTORIES)
write_ms = meter.create_histogram(names.RECORDER_WRITE_MS, "ms")


class WrittenBatch(msgspec.Struct, frozen=True):
    """An observation, and the record that it came in."""

    record: ConsumerRecord
    observation: Observation


class ObservationWriter:
    """Does steps 1 to 3 of a batch; the offsets are its caller's."""

    def __init__(self, store: AsyncStore, publisher: Publisher) -> None:
        self.store = store
        self.publisher = publisher

    async def take_down(self, records: Sequence[ConsumerRecord]) -> set[str]:
        """Write a batch and announce what ended in it; return the hosts it came from once all of it is durable."""
        batch = await self._decoded(records)
        await asyncio.gather(*(self._write(item) for item in batch))
        ends = {item.observation.trajectory_id: item for item in batch if item.observation.end is not None}
        await asyncio.gather(*(self._finish(item) for item in ends.values()))
        return {item.observation.env_host for item in batch}

    async def _decoded(self, records: Sequence[ConsumerRecord]) -> list[WrittenBatch]:
        batch = []
        for record in records:
            try:
                batch.append(WrittenBatch(record, event_of(observations.TOPIC, record)))
            except Undecodable as why:
                await dead_letters.send(self.publisher, observations.TOPIC, record, str(why))
        return batch

    async def _write(self, item: WrittenBatch) -> None:
        began = time.perf_counter()
        observation = item.observation
        attributes = {names.ATTR_TRAJECTORY: observation.trajectory_id, names.ATTR_STEP: observation.step}
        with ActiveSpan(names.SPAN_RECORD, parent=context_of(item.record.headers), attributes=attributes):
            await self.store.write_step(observation)
        write_ms.record((time.perf_counter() - began) * 1000)
        steps_written.add(1)

    async def _finish(self, item: WrittenBatch) -> None:
        trajectory = await self._summed_up(item)
        await self.store.write_trajectory(trajectory)
        # A cancelled episode's order is delivered again: announcing it would pass for the order's finish.
        if trajectory.outcome == "cancelled":
            return
        with UseSpan(context_of(item.record.headers)):
            await self.publisher.publish(trajectories.TOPIC, trajectory, record_id=trajectory.trajectory_id)
        announced.add(1, {"outcome": trajectory.outcome})

    async def _summed_up(self, item: WrittenBatch) -> Trajectory:
        identity = item.observation.trajectory_id
        try:
            return summarise(await self.store.steps(identity))
        except Incomplete as gap:
            why = f"trajectory {identity}: {gap}"
            await dead_letters.send(self.publisher, observations.TOPIC, item.record, why)
            return broken(item.observation, why)
