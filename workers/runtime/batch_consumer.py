"""A member of a consumer group that handles whole batches.

A batch is durable as a whole, so its offsets are committed as a whole. :mod:`workers.runtime.ordered_consumer` commits
records instead.
"""

import abc
import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

import structlog
from aiokafka import ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaTimeoutError

from dart_streams import crash_points
from dart_streams.bus.clients import commit_within, create_consumer, has_reached, start_within
from dart_streams.config import Config
from dart_streams.deadline import Deadline
from dart_streams.telemetry.stall_detector import StallDetector
from topics import Topic
from workers.runtime.assignment import find_missing_partitions

POLL_TIMEOUT_MS = 500
"""Maximum wait of a poll, and so the delay of a stop."""

log = structlog.get_logger()


class BatchConsumer(ConsumerRebalanceListener):
    """Reads ``topic``: polls up to ``max_records``, calls :meth:`handle`, and commits every ``commit_interval_s``.

    Uncommitted batches are delivered again after a crash. ``settings`` are the client's.
    """

    max_records: int
    commit_interval_s: float

    def __init__(self, config: Config, worker_id: str, topic: Topic, group: str, **settings: Any) -> None:
        self.bus = config.bus
        self.group = group
        self.name = config.bus.prefix + topic.name
        self.records = create_consumer(config.bus, topic, group=group, client_id=worker_id, **settings)
        self.stalls = StallDetector(log, f"records of {config.bus.prefix}{topic.name}", config.telemetry.stall_s)
        self.drain_s = config.run.drain_s / 2
        self.handled: dict[TopicPartition, int] = {}
        self.revocations = 0
        self.committed_s = time.monotonic()

    async def __aenter__(self) -> Self:
        """Join the group; raise ServiceUnavailable if the broker does not answer."""
        self.records.subscribe([self.name], listener=self)
        await start_within(self.records, self.bus)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.records.stop()

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        """Forget what is handled: another member may commit newer offsets, before a partition returns."""
        self.revocations += 1
        self.handled = {}

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        """Do nothing: uncommitted records are delivered again."""

    def find_lack(self) -> str:
        """Return what this member lacks to be ready: partitions."""
        return find_missing_partitions(self.records, self.group)

    @abc.abstractmethod
    async def handle(self, polled: Mapping[TopicPartition, Sequence[ConsumerRecord]]) -> str:
        """Handle a batch and return its source; repeats must have no effect."""

    async def flush(self) -> None:
        """Make the effects of the handled batches durable."""
        return

    async def serve(self, stop: asyncio.Event) -> None:
        """Handle batches until ``stop`` is set, then up to the present ends, within half of ``run.drain_s``."""
        while not stop.is_set():
            await self._take_batch()
        deadline = Deadline(self.drain_s)
        ends = await self.records.end_offsets(self.records.assignment())
        while not deadline.expired and not await has_reached(self.records, self._assigned(ends)):
            await self._take_batch()
        await self._commit()

    async def _take_batch(self) -> None:
        polled = await self.records.getmany(timeout_ms=POLL_TIMEOUT_MS, max_records=self.max_records)
        self.stalls.check()
        if polled:
            revocations = self.revocations
            source = await self.handle(polled)
            if revocations == self.revocations:
                self.handled |= {partition: batch[-1].offset + 1 for partition, batch in polled.items()}
            self.stalls.note_arrival(source)
        if self.handled and time.monotonic() - self.committed_s >= self.commit_interval_s:
            await self._commit()

    def _assigned(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the offsets of the partitions that are still assigned."""
        return {partition: offsets[partition] for partition in offsets.keys() & self.records.assignment()}

    async def _commit(self) -> None:
        """Commit the handled offsets of the assigned partitions; after a refused commit, batches are repeated."""
        revocations = self.revocations
        await self.flush()
        offsets = self._assigned(self.handled)
        self.handled, self.committed_s = {}, time.monotonic()
        if not offsets:
            return
        try:
            await commit_within(self.records, offsets)
            crash_points.reach(f"{self.group}-committed")
        except (CommitFailedError, IllegalStateError) as error:
            log.info("commit refused", reason=str(error) or type(error).__name__)
        except KafkaTimeoutError as error:
            if revocations == self.revocations:
                self.handled = offsets | self.handled
            log.warning("commit failed", reason=str(error))
