"""A member of a consumer group that handles records concurrently and commits their offsets in order.

The read-ahead is the client's own buffer of the partitions assigned, and what :meth:`OrderedConsumer.read_ahead` takes
from it; both are dropped when one is revoked.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, NamedTuple, Self

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from aiokafka.errors import CommitFailedError, ConsumerStoppedError, IllegalStateError, KafkaError

from dart_streams import crash_points
from dart_streams.background import wait_at_most
from dart_streams.bus import dead_letters
from dart_streams.bus.clients import Publisher, commit_within, committed_within, create_consumer, event_of, start_within
from dart_streams.bus.codec import Undecodable
from dart_streams.bus.log_gaps import LogGaps
from dart_streams.config import Config
from dart_streams.telemetry.stall_detector import StallDetector
from topics import Topic
from workers.runtime.assignment import find_missing_partitions
from workers.runtime.death_counts import DeathCounts, read_note
from workers.runtime.in_flight import DeliveryStatus, InFlightRecords, TrackedOffset

COMMIT_INTERVAL_S = 1.0
"""Interval between commits, and so the work that a killed worker repeats. A commit is a write to the broker."""
DRAIN_MARGIN_S = 3.0
"""Part of the drain reserved for cancelled handlers, the last commit and closing resources."""

log = structlog.get_logger()


class Delivery(NamedTuple):
    """An event and its record."""

    event: Any
    record: ConsumerRecord


Handle = Callable[[int, Delivery], Awaitable[None]]
"""Handles a record in a slot (from 0); returns once its effects are durable."""


class Gate:
    """Holds records back from a slot or from all; this one is always open."""

    async def slot_ready(self, slot: int) -> None:
        """Return once a slot may have a record."""

    async def may_read(self) -> None:
        """Return once the next record may be read."""


class OrderedConsumer(ConsumerRebalanceListener):
    """Reads ``topic`` as a member of ``group``; ``id_field`` of its event identifies redelivered records."""

    def __init__(
        self,
        config: Config,
        worker_id: str,
        publisher: Publisher,
        topic: Topic,
        id_field: str,
        group: str,
        *,
        gate: Gate | None = None,
        **settings: Any,
    ) -> None:
        self.bus = config.bus
        self.publisher = publisher
        self.topic = topic
        self.group = group
        self.id_field = id_field
        self.name = config.bus.prefix + topic.name
        self.drain_s = max(config.run.drain_s - DRAIN_MARGIN_S, config.run.drain_s / 2)
        self.stalls = StallDetector(log, f"records of {self.name}", config.telemetry.stall_s)
        self.records: InFlightRecords[TopicPartition] = InFlightRecords()
        self.gate = gate or Gate()
        self.deaths: DeathCounts[TopicPartition] = DeathCounts()
        self._committing = asyncio.Lock()
        self._marked: set[str] = set()
        self._begun: dict[str, str] = {}
        self.gaps = LogGaps(log)
        self.client_settings = {"group": group, "client_id": worker_id, **settings}
        self.consumer: AIOKafkaConsumer = create_consumer(config.bus, **self.client_settings)
        self._taking = asyncio.Lock()
        self._idle: set[asyncio.Task[Any] | None] = set()
        self._ahead: deque[Delivery] = deque()
        self._room = asyncio.Event()
        self._room.set()
        self._left = False
        self._member = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()

    async def __aenter__(self) -> Self:
        """Join the group; raise ServiceUnavailable if broker or topic is missing."""
        await self.publisher.partitions_of(self.topic)
        await self.join()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.consumer.stop()

    def find_lack(self) -> str:
        """Return what this member lacks to be ready: membership, or partitions."""
        left = f"it has left the group {self.group}"
        return left if self._left else find_missing_partitions(self.consumer, self.group)

    async def join(self) -> None:
        """Join the group, also after :meth:`leave`; raise ServiceUnavailable if the broker does not answer."""
        if self._left:
            self.consumer, self._left = create_consumer(self.bus, **self.client_settings), False
        self.consumer.subscribe([self.name], listener=self)
        await start_within(self.consumer, self.bus)
        self._member.set()

    async def leave(self, limit_s: float) -> None:
        """Stop reading, wait up to ``limit_s`` for the records in flight, and leave the group.

        Unread and unfinished records are delivered to other members.
        """
        self._member.clear()
        partitions = sorted(self.consumer.assignment())
        self.consumer.pause(*partitions)
        self._forget_ahead(partitions)
        await wait_at_most(self._settled, limit_s)
        await self.commit(given_up=True)
        self.records.revoke(partitions)
        self._left = True
        await self.consumer.stop()

    async def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        """Commit finished records; the rest is redelivered to the new owner."""
        await self.commit(given_up=True)
        self._forget_ahead(revoked)
        self.records.revoke(revoked)
        self.deaths.revoke(revoked)
        self._marked &= self.deaths.in_hand

    def _forget_ahead(self, revoked: Collection[TopicPartition]) -> None:
        for delivery in [ahead for ahead in self._ahead if partition_of(ahead.record) in revoked]:
            self._ahead.remove(delivery)
            self.records.forget(getattr(delivery.event, self.id_field))
        self._note_settled()
        self._room.set()

    def _note_settled(self) -> None:
        if not self.records.in_flight:
            self._settled.set()

    async def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        """Track the assigned partitions, and read deaths of members from the group's offsets of all partitions."""
        self.records.assign(assigned)
        numbers = self.consumer.partitions_for_topic(self.name) or set()
        try:
            every = {TopicPartition(self.name, number) for number in numbers} | {*assigned}
            offsets = await committed_within(self.consumer, every)
        except KafkaError as error:
            log.warning("deaths of members unknown", reason=str(error) or type(error).__name__)
            return
        for partition, committed in offsets.items():
            self.deaths.learn(read_note(committed.metadata), died=partition in assigned)

    async def begin(self, delivery: Delivery, name: str) -> None:
        """Note that a record is about to be handled, so that the next member learns of a death.

        Deaths are counted by ``name``. Concurrent calls share a commit. Without the broker's answer the death is not
        counted.
        """
        record_id = getattr(delivery.event, self.id_field)
        self._begun[record_id] = name
        self.deaths.begin(partition_of(delivery.record), record_id, name)
        async with self._committing:
            if record_id not in self._marked:
                marking = self.deaths.in_hand
                if await self._commit(self.records.offsets.ready()):
                    self._marked = marking

    async def serve(self, handle: Handle, slots: int, stop: asyncio.Event) -> None:
        """Handle records in ``slots`` concurrent slots until ``stop`` is set, then finish those in flight and commit.

        Handlers that exceed the drain are cancelled, and their records redelivered to another member. The first error
        of a handler is raised.
        """
        tasks = {asyncio.create_task(self._serve_slot(handle, slot, stop)) for slot in range(slots)}
        stopped = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait({stopped, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            await self._drain(tasks)
        finally:
            for task in (stopped, *tasks):
                task.cancel()
        await self.commit(given_up=True)

    async def _drain(self, tasks: set[asyncio.Task[None]]) -> None:
        log.info("draining", in_flight=len(self.records.in_flight), bound_s=self.drain_s)
        for task in tasks & self._idle:
            task.cancel()
        _, late = await asyncio.wait(tasks, timeout=self.drain_s)
        for task in late:
            task.cancel()
        if late:
            log.info("drain cut short", cancelled=len(late), bound_s=self.drain_s)
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    async def _serve_slot(self, handle: Handle, slot: int, stop: asyncio.Event) -> None:
        """Handle each record at least once: a crash before step 5 is committed redelivers it.

        1. Take the next record of the assigned partitions, in order.
        2. Finish an undecodable record once it is a durable dead letter.
        3. Skip a record in flight or finished here; its offset finishes with the first delivery.
        4. Handle it: when ``handle`` returns, its effects, idempotent by id, are durable.
        5. Finish it; :meth:`commit` moves the committed offset up to the lowest record in flight.
        """
        this = asyncio.current_task()
        while not stop.is_set():
            self._idle.add(this)
            await self.gate.slot_ready(slot)
            delivery = await self._take()
            self._idle.discard(this)
            crash_points.reach(f"{self.group}-taken")
            await handle(slot, delivery)
            crash_points.reach(f"{self.group}-handled")
            record_id = getattr(delivery.event, self.id_field)
            if (name := self._begun.pop(record_id, None)) is not None:
                self.deaths.finish(record_id, name)
            self.records.finish(record_id)
            self._note_settled()

    async def read_ahead(self, count: int, expect: Callable[[Any], None]) -> None:
        """Keep up to ``count`` records ready, and call ``expect`` with each, until cancelled."""
        while True:
            await self._room.wait()
            async with self._taking:
                if len(self._ahead) < count:
                    delivery = await self._read()
                    self._ahead.append(delivery)
                    expect(delivery.event)
                if len(self._ahead) >= count:
                    self._room.clear()

    async def _take(self) -> Delivery:
        """Return the next record; idle slots take turns."""
        self.stalls.note_arrival()
        if not self._ahead:  # Otherwise not in turn: the reader ahead may wait forever for a record.
            async with self._taking:
                if not self._ahead:
                    return await self._read()
        self._room.set()
        return self._ahead.popleft()

    async def _read(self) -> Delivery:
        """Take steps 1 to 3."""
        await self.gate.may_read()
        while True:
            await self._member.wait()
            try:
                record = await self.consumer.getone()
            except ConsumerStoppedError:
                if not self._left:
                    raise
                continue
            if not self._member.is_set():
                continue  # It is delivered to another member.
            place = TrackedOffset(partition_of(record), record.offset)
            await self.gaps.check(self.consumer, place.partition, place.offset, place.offset)
            try:
                event = event_of(self.topic, record)
            except Undecodable as error:
                await self.dead_letter(record, str(error))
                self.records.skip(place)
                continue
            record_id = getattr(event, self.id_field)
            status = self.records.deliver(record_id, place)
            if status is DeliveryStatus.NEW:
                self._settled.clear()
                self.stalls.note_arrival(f"{record.topic}[{record.partition}]@{record.offset}")
                return Delivery(event, record)
            if (name := self._begun.get(record_id)) is not None:
                self.deaths.begin(place.partition, record_id, name)
            log.debug("record skipped", id=record_id, reason=status.value)

    async def dead_letter(self, record: ConsumerRecord, reason: str) -> None:
        """Publish a record that cannot be handled as a dead letter."""
        await dead_letters.send(self.publisher, self.topic, record, reason)

    async def commit(self, *, given_up: bool = False) -> None:
        """Commit each partition's contiguous finished prefix; the next commit retries a failed one.

        ``given_up`` if this member releases its partitions: the records in its hands are then no deaths.
        """
        async with self._committing:  # One after the other: the text of an older commit would undo that of a newer one.
            offsets = self.records.offsets
            await self._commit(offsets.ready() if given_up else offsets.commits(), given_up=given_up)

    async def _commit(self, offsets: Mapping[TopicPartition, int], *, given_up: bool = False) -> bool:
        """Commit these offsets; return whether they are committed."""
        if not offsets:
            return True
        noted = {place: (at, self.deaths.note(place, given_up=given_up)) for place, at in offsets.items()}
        try:
            await commit_within(self.consumer, noted)
        except (CommitFailedError, IllegalStateError) as error:
            log.info("commit refused", reason=str(error) or type(error).__name__)
        except KafkaError as error:
            log.warning("commit failed", reason=str(error) or type(error).__name__)
        else:
            crash_points.reach(f"{self.group}-committed")
            self.records.offsets.committed(offsets)
            return True
        return False

    async def commit_periodically(self) -> None:
        """Commit, and report an overdue wait for records, every :data:`COMMIT_INTERVAL_S` until cancelled."""
        while True:
            await asyncio.sleep(COMMIT_INTERVAL_S)
            await self.commit()
            if self._taking.locked() and self._idle:
                self.stalls.check()


def partition_of(record: ConsumerRecord) -> TopicPartition:
    """Return the partition of a record."""
    return TopicPartition(record.topic, record.partition)
