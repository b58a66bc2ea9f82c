"""Takes action requests from the broker, as a member of the group of all rollout workers.

Offsets are committed after the reply, up to the lowest request under way: a request that its worker did not live to
answer is taken up by another one while its deadline allows. One that was answered twice does no harm, as environment
workers take only the reply they wait for. Commits are made in the background, a few times a second.
"""

import asyncio
from types import TracebackType
from typing import Self

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from dart_streams.bus.clients import consumer, start_within
from dart_streams.bus.offsets import Offsets, TrackedOffset
from dart_streams.config import Config
from dart_streams.telemetry.stall_detector import StallDetector
from topics import action_requests

GROUP = "rollout"
POLL_MS = 200
"""How long one poll waits for a first request, and so how late a stop is noticed."""
COMMIT_S = 0.5

log = structlog.get_logger()


class RequestConsumer(ConsumerRebalanceListener):
    """Requests of the partitions that this worker owns at present, and which of them are done."""

    def __init__(self, config: Config, worker_id: str) -> None:
        self.bus = config.bus
        self.offsets: Offsets[TopicPartition] = Offsets()
        self.topic = config.bus.prefix + action_requests.TOPIC.name
        self.waiting = StallDetector(log, f"requests on {self.topic}", config.telemetry.stall_s)
        self.under_way: set[TrackedOffset[TopicPartition]] = set()
        self.records: AIOKafkaConsumer = consumer(config.bus, group=GROUP, client_id=worker_id)

    async def __aenter__(self) -> Self:
        """Join the group; raise :class:`~dart_streams.errors.ServiceUnavailable` if no broker answers."""
        self.records.subscribe([self.topic], listener=self)
        await start_within(self.records, self.bus)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.records.stop()

    async def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        """Commit what is done; the rest will be answered twice at worst."""
        await self.commit()
        self.offsets.revoke(revoked)

    async def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        """Start afresh with these partitions."""
        self.offsets.assign(assigned)

    async def take(self, room: int) -> list[ConsumerRecord]:
        """Return at most ``room`` next records, after :data:`POLL_MS` at the latest.

        After a rebalance the requests under way come again: they are not taken twice.
        """
        taken = []
        for partition, batch in (await self.records.getmany(timeout_ms=POLL_MS, max_records=room)).items():
            for record in batch:
                place = TrackedOffset(partition, record.offset)
                self.waiting.note_arrival(f"{record.topic}[{record.partition}]@{record.offset}")
                if self.offsets.take(place) and place not in self.under_way:
                    self.under_way.add(place)
                    taken.append(record)
        self.waiting.check()
        return taken

    def finish(self, record: ConsumerRecord) -> None:
        """Note that a record is answered, dropped or put aside."""
        place = TrackedOffset(TopicPartition(record.topic, record.partition), record.offset)
        self.under_way.discard(place)
        self.offsets.finish(place)

    async def commit(self) -> None:
        """Commit the contiguous done prefix of each partition; a commit that fails is made up for by the next."""
        ready = self.offsets.commits()
        if not ready:
            return
        try:
            await self.records.commit(ready)
        except (CommitFailedError, IllegalStateError) as error:
            log.info("commit refused", because=str(error) or type(error).__name__)
        except KafkaError as error:
            log.warning("commit failed", because=str(error) or type(error).__name__)
        else:
            self.offsets.committed(ready)

    async def commit_for_ever(self) -> None:
        """Commit every :data:`COMMIT_S`."""
        while True:
            await asyncio.sleep(COMMIT_S)
            await self.commit()
