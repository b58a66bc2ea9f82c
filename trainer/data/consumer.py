"""The background consumer of rank 0: ``curated`` from where the checkpoint stands, and ``weights`` for a newer trainer.

The training loop never waits for Kafka while there is data: arrivals are queued here, bounded, and read ahead.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import msgspec
import structlog
from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.errors import KafkaError

from dart_streams.bus import admin, sync_clients, sync_dead_letters
from dart_streams.bus.codec import Undecodable, decode
from dart_streams.config import Bus
from dart_streams.deadline import Deadline
from dart_streams.errors import UserError
from topics import curated, weights
from topics.curated import CuratedGroup
from topics.transitions import WeightState
from topics.weights import WeightVersion

POLL_TIMEOUT_MS = 200
MAX_POLL_RECORDS = 4
"""Records between two checks for room in the queue."""
SEND_TIMEOUT_S = 30.0
CLIENT = "trainer"
GROUP = "trainer"
"""The consumer group under which offsets are committed, for displays of lag: training resumes from the checkpoint's."""
MAX_RECENT_GROUPS = 4096
"""Groups taken last, by which repeated ones are recognised."""

log = structlog.get_logger()


class Fenced(UserError):
    """A newer incarnation of the trainer has taken over."""

    @classmethod
    def by(cls, newer: int, epoch: int, model_id: str, run: str) -> "Fenced":
        """Return the error of the trainer of ``epoch``."""
        return cls(
            f"a newer trainer (epoch {newer}) has taken over model {model_id!r} of run {run!r}: this one (epoch "
            f"{epoch}) stops. Nothing needs to be done, unless both were started by mistake"
        )


class Overtaken(UserError):
    """Somebody who is no trainer has announced an epoch or a version that readers take for newer than this trainer's.

    A trainer that is started again claims an epoch, and numbers its weights, beyond what it finds.
    """

    exit_code = 1

    @classmethod
    def by(cls, event: WeightVersion, bus: Bus) -> "Overtaken":
        """Return the error of a trainer that found ``event`` on ``weights``."""
        return cls(
            f"{bus.prefix}{weights.TOPIC.name} has version {event.version} of epoch {event.epoch} at "
            f"{event.uri[:200]!r}, which no trainer of this run has published: rollout workers would wait for its "
            "weights. Started again, this trainer goes on beyond these numbers. Find out who else writes to the topic"
        )


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """Where the trainer stands in the ``curated`` log: a value that each checkpoint holds.

    ``offsets`` has the next offset to take of each partition; later ones are pending, and still in the log.

    ``recent`` names the groups taken last: ``curated`` is delivered at least once, and a group is trained once.
    ``groups_consumed`` counts the different groups taken so far, those dropped included. ``topic_id`` is the broker's
    id of the topic, empty where it is not known.
    """

    offsets: dict[int, int] = {}
    groups_consumed: int = 0
    recent: tuple[str, ...] = ()
    topic_id: str = ""

    def contains(self, group_id: str) -> bool:
        """Return whether this group is among the last ``REMEMBERED`` that were taken."""
        return group_id in self.recent

    def after(self, partition: int, offset: int, group_id: str) -> "Position":
        """Return the position after taking the group at this place; a repeated one only moves the offset."""
        offsets = {**self.offsets, partition: max(offset + 1, self.offsets.get(partition, 0))}
        if self.contains(group_id):
            return msgspec.structs.replace(self, offsets=offsets)
        return msgspec.structs.replace(
            self,
            offsets=offsets,
            groups_consumed=self.groups_consumed + 1,
            recent=(*self.recent, group_id)[-MAX_RECENT_GROUPS:],
        )

    def resumed(self, topic_id: str, begins: Mapping[int, int], ends: Mapping[int, int]) -> "Position":
        """Return where to go on in the topic as it is now, by the beginning and the end of each partition's log.

        Of a topic made anew it is the beginning. Groups that retention has removed before they were taken count as
        consumed: dispatch would wait for them for ever.
        """
        changed = bool(topic_id and self.topic_id and topic_id != self.topic_id)
        if changed or any(offset > ends.get(partition, 0) for partition, offset in self.offsets.items()):
            return msgspec.structs.replace(self, offsets={}, topic_id=topic_id)
        gone = {at: begin - self.offsets.get(at, 0) for at, begin in begins.items() if begin > self.offsets.get(at, 0)}
        return msgspec.structs.replace(
            self,
            offsets={**self.offsets, **{partition: begins[partition] for partition in gone}},
            groups_consumed=self.groups_consumed + sum(gone.values()),
            topic_id=topic_id or self.topic_id,
        )


def by_number(offsets: Mapping[TopicPartition, int]) -> dict[int, int]:
    """Return offsets by the numbers of their partitions."""
    return {partition.partition: offset for partition, offset in offsets.items()}


def resumed_position(bus: Bus, position: Position) -> Position:
    """Return where a trainer goes on that stood at ``position``, and log what of ``curated`` is gone by now.

    Raises :class:`ServiceUnavailable` as the clients do.
    """
    name = bus.prefix + curated.TOPIC.name
    with contextlib.closing(sync_clients.create_consumer(bus, f"{CLIENT}-position")) as client:
        places = sync_clients.await_partitions(client, bus, curated.TOPIC)
        begins = sync_clients.ask_until_answered(lambda: client.beginning_offsets(places), bus)
        ends = sync_clients.ask_until_answered(lambda: client.end_offsets(places), bus)
    with admin.connect(bus) as asked:
        topic_id = admin.topic_ids(asked, [name]).get(name, "")
    found = position.resumed(topic_id, by_number(begins), by_number(ends))
    if position.offsets and not found.offsets:
        log.warning("topic made anew: read from its beginning", topic=name, effect="groups not taken yet are gone")
    elif gone := found.groups_consumed - position.groups_consumed:
        effect = "they count as consumed, so that dispatch does not wait for them"
        log.warning("groups gone before they were taken", topic=name, groups=gone, effect=effect)
    return found


class Arrival(NamedTuple):
    """A group and its place in the log."""

    partition: int
    offset: int
    group: CuratedGroup


@dataclass
class CuratedConsumer:
    """Reads in a thread of its own; use it as a context, and take arrivals in order with :meth:`take`.

    ``on_group`` is called in that thread with each group, to read it ahead; while ``is_full``, no more is fetched.
    ``claimed`` gives the newest epoch that a trainer has claimed: a record of a later one is of no trainer.
    """

    bus: Bus
    position: Position
    model_id: str
    epoch: int
    capacity: int
    claimed: Callable[[], int]
    on_group: Callable[[CuratedGroup], None] = lambda _: None
    is_full: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        self._queue: queue.SimpleQueue[Arrival] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self.weights = WeightState(model_id=self.model_id)
        """What everyone who reads ``weights`` takes for the newest."""
        self._error: UserError | None = None
        self._commit: Position | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="curated")

    def __enter__(self) -> Self:
        self._ended = self._thread.submit(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.shutdown()

    def take(self, timeout_s: float) -> Arrival | None:
        """Return the next group, or None if none came within ``timeout_s``.

        Raises :class:`Fenced` if a newer trainer runs, :class:`Overtaken` if there only seems to be one, and whatever
        error ended the thread.
        """
        deadline = Deadline(timeout_s)
        while True:
            self.check()
            try:
                return self._queue.get(timeout=min(POLL_TIMEOUT_MS / 1000, deadline.remaining_s))
            except queue.Empty:
                if deadline.expired:
                    return None

    def check(self) -> None:
        """Raise what :meth:`take` would raise, without taking anything."""
        if self._error is not None:
            raise self._error
        if self._ended.done():
            self._ended.result()

    def queued(self) -> int:
        """Return the number of groups that have arrived and were not taken."""
        return self._queue.qsize()

    def commit(self, position: Position) -> None:
        """Commit the offsets of ``position`` soon, in the background; they are for displays of lag only."""
        self._commit = position

    def _run(self) -> None:
        # Two clients, because kafka-python 3.0 may never resume a paused partition while it reads another one.
        bus, group = self.bus, self.bus.prefix + GROUP
        with (
            contextlib.closing(
                sync_clients.create_producer(bus, f"{CLIENT}-dead-letters", idempotent=False)
            ) as producer,
            sync_clients.TopicReader(bus, f"{CLIENT}-weights", weights.TOPIC) as announcements,
            sync_clients.TopicReader(
                bus, CLIENT, curated.TOPIC, self.position.offsets, group_id=group, max_poll_records=MAX_POLL_RECORDS
            ) as groups,
        ):
            while not self._stopping.is_set():
                self._check_fencing(announcements)
                if self._queue.qsize() < self.capacity and not self.is_full():
                    for record in groups.poll(POLL_TIMEOUT_MS):
                        self._apply(record, producer)
                else:
                    self._stopping.wait(POLL_TIMEOUT_MS / 1000)
                self._commit_offsets(groups.client)

    def _check_fencing(self, announcements: sync_clients.TopicReader) -> None:
        for record in announcements.poll(timeout_ms=0):
            with contextlib.suppress(Undecodable):
                self._note_announced(decode(weights.TOPIC, record.value, record.headers))

    def _note_announced(self, event: WeightVersion) -> None:
        if event.model_id == self.model_id and not self.weights.admits(event) and event.epoch > self.epoch:
            log.warning(
                "weights record ignored",
                version=event.version,
                epoch=event.epoch,
                reason="no trainer is so far ahead: it is ignored by everyone. Find out who else writes to the topic",
            )
        known = self.weights.accept(event)
        if known.epoch > self.epoch and self._error is None:
            claimed = self.claimed()
            if claimed > self.epoch:
                self._error = Fenced.by(claimed, self.epoch, self.model_id, self.bus.run)
            else:
                self._error = Overtaken.by(event, self.bus)
        self.weights = known

    def _apply(self, record: Any, producer: KafkaProducer) -> None:
        try:
            group: CuratedGroup = decode(curated.TOPIC, record.value, record.headers)
        except Undecodable as error:
            sync_dead_letters.send(producer, curated.TOPIC, record, str(error), SEND_TIMEOUT_S)
            return
        self.on_group(group)
        self._queue.put(Arrival(record.partition, record.offset, group))

    def _commit_offsets(self, records: KafkaConsumer) -> None:
        position, self._commit = self._commit, None
        if position is None:
            return
        offsets = {
            TopicPartition(self.bus.prefix + curated.TOPIC.name, partition): OffsetAndMetadata(offset, "", -1)
            for partition, offset in position.offsets.items()
        }
        try:
            records.commit(offsets, timeout_ms=5_000)
        except KafkaError as error:
            log.warning("offsets not committed", reason=str(error), effect="only the displayed lag")
