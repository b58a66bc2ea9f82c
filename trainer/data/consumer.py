"""Background consumer of rank 0: ``curated`` from the checkpoint on, and ``weights`` to detect a newer trainer."""

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
from dart_streams.errors import UserError
from topics import curated, weights
from topics.curated import CuratedGroup
from topics.transitions import WeightState
from topics.weights import WeightVersion

POLL_TIMEOUT_MS = 200
MAX_POLL_RECORDS = 4
"""Records between two checks of the queue's capacity."""
SEND_TIMEOUT_S = 30.0
CLIENT = "trainer"
GROUP = "trainer"
"""Consumer group of offsets committed for lag displays; training resumes from the checkpoint."""
MAX_RECENT_GROUPS = 4096
"""Number of recent groups remembered to detect repeats."""

log = structlog.get_logger()


class Fenced(UserError):
    """A newer incarnation of the trainer has taken over."""

    @classmethod
    def by(cls, newer: int, epoch: int, model_id: str, run: str) -> "Fenced":
        """Return the error for the trainer of ``epoch``."""
        return cls(
            f"a newer trainer (epoch {newer}) has taken over model {model_id!r} of run {run!r}: this one (epoch "
            f"{epoch}) stops. No action is needed, unless both were started by mistake"
        )


class Overtaken(UserError):
    """A foreign producer announced an epoch or version above this trainer's; a restarted trainer numbers beyond it."""

    exit_code = 1

    @classmethod
    def by(cls, event: WeightVersion, bus: Bus) -> "Overtaken":
        """Return the error for the foreign ``event`` on ``weights``."""
        return cls(
            f"{bus.prefix}{weights.TOPIC.name} has version {event.version} of epoch {event.epoch} at "
            f"{event.uri[:200]!r}, which no trainer of this run has published: rollout workers would wait for its "
            "weights. A restarted trainer numbers beyond it. Find the other writer of the topic"
        )


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """Trainer's position in ``curated``, stored in each checkpoint.

    ``offsets`` has the next offset of each partition and ``recent`` the last groups taken, to drop repeated deliveries.
    ``groups_consumed`` counts distinct groups taken, dropped ones included. ``topic_id`` is the broker's id of the
    topic.
    """

    offsets: dict[int, int] = {}
    groups_consumed: int = 0
    recent: tuple[str, ...] = ()
    topic_id: str = ""

    def contains(self, group_id: str) -> bool:
        """Return whether the group is among the last ``MAX_RECENT_GROUPS`` taken."""
        return group_id in self.recent

    def after(self, partition: int, offset: int, group_id: str, *, counts: bool = True) -> "Position":
        """Return the position after taking this group; a repeated group only advances the offset.

        A group that does not count, as one of feedback, leaves ``groups_consumed`` as it is.
        """
        offsets = {**self.offsets, partition: max(offset + 1, self.offsets.get(partition, 0))}
        if self.contains(group_id):
            return msgspec.structs.replace(self, offsets=offsets)
        return msgspec.structs.replace(
            self,
            offsets=offsets,
            groups_consumed=self.groups_consumed + counts,
            recent=(*self.recent, group_id)[-MAX_RECENT_GROUPS:],
        )

    def resumed(self, topic_id: str, begins: Mapping[int, int], ends: Mapping[int, int]) -> "Position":
        """Return the position in the present topic, whose partitions have these begin and end offsets.

        A recreated topic is read from its beginning. Groups that retention removed count as consumed, as dispatch would
        wait for them forever.
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
    """Return offsets by partition number."""
    return {partition.partition: offset for partition, offset in offsets.items()}


def resumed_position(bus: Bus, position: Position) -> Position:
    """Return where a trainer at ``position`` resumes, and log lost groups; raise :class:`ServiceUnavailable`."""
    name = bus.prefix + curated.TOPIC.name
    with contextlib.closing(sync_clients.create_consumer(bus, f"{CLIENT}-position")) as client:
        places = sync_clients.await_partitions(client, bus, curated.TOPIC)
        begins = sync_clients.ask_until_answered(lambda: client.beginning_offsets(places), bus)
        ends = sync_clients.ask_until_answered(lambda: client.end_offsets(places), bus)
    with admin.connect(bus) as asked:
        topic_id = admin.topic_ids(asked, [name]).get(name, "")
    resumed = position.resumed(topic_id, by_number(begins), by_number(ends))
    if position.offsets and not resumed.offsets:
        log.warning("topic recreated: read from its beginning", topic=name, effect="groups not yet taken are lost")
    elif lost := resumed.groups_consumed - position.groups_consumed:
        effect = "they count as consumed, or dispatch would wait for them"
        log.warning("groups deleted before they were taken", topic=name, groups=lost, effect=effect)
    return resumed


class Arrival(NamedTuple):
    """A group and its place in the log."""

    partition: int
    offset: int
    group: CuratedGroup


@dataclass
class CuratedConsumer:
    """Reads groups in a thread, which calls ``on_group`` with each; use as a context and call :meth:`take`."""

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
        """State of ``weights`` as every reader folds it."""
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
        """Return the next group, or None after ``timeout_s``; raises as :meth:`check` does."""
        self.check()
        try:
            return self._queue.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def check(self) -> None:
        """Raise :class:`Fenced`, :class:`Overtaken`, or the error that ended the thread."""
        if self._error is not None:
            raise self._error
        if self._ended.done():
            self._ended.result()

    def queued(self) -> int:
        """Return the number of groups not yet taken."""
        return self._queue.qsize()

    def commit(self, position: Position) -> None:
        """Commit offsets in the background, for lag displays only."""
        self._commit = position

    def _run(self) -> None:
        # Two clients: kafka-python 3.0 may never resume a paused partition while it reads another one.
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
                reason="no trainer is so far ahead, so all readers ignore it: find the other writer of the topic",
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
            log.warning("offsets not committed", reason=str(error), effect="only the displayed lag is old")
