"""A run's live topics and store as the page's source.

Its consumer is in no group, commits nothing, and reads only while the page has viewers: a page without them costs the
broker no request. There is no producer, so a login with read access is enough.
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

import msgspec
import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from console.lineage.traces import RequestSegment, Timeline, lines_in
from console.repair import dead_letters
from console.repair.dead_letters import DeadLetter, DeadLetterSummary
from console.runs.bundle import BundleRecord
from console.runs.metrics_reader import MetricsReader
from console.runs.process_usage import USAGE_FILE, read_usage
from console.runs.run_folder import PhaseLog, RunFolder
from console.runs.run_follower import RunFollower
from console.runs.run_log import present_records
from console.runs.run_state import RunState
from console.views.page.records import newest_records
from console.views.page.source import SHOWN, NotFound, Progress, RunSource, action_segments
from console.views.report_metrics import ReportInputs
from dart_streams.bus.clients import FETCH_BYTES, read_alone
from dart_streams.bus.lag import Lag, LagReader, lag_reader
from dart_streams.clock import now_ms
from dart_streams.config import Bus, Config
from dart_streams.config.tasks import TaskSet
from dart_streams.connection import auth
from dart_streams.errors import ServiceUnavailable, UserError
from dart_streams.store import AsyncStore, MissingBlob, connect_async
from dart_streams.store.objects import TRY_S, open_objects
from topics import Topic
from topics.observations import Observation

VIEWER_TIMEOUT_S = 60.0
"""Reading stops this long after the last viewer has left."""
RETRY_S = 2.0
FETCH_MS = 300
TRACES_MAX_AGE_S = 10.0
"""Age at which spans are read again, or five times what reading took."""
LAGS_MAX_AGE_S = 4.0
REQUEST_TIMEOUT_S = 3.0
"""Bound of a wait for a topic, the broker or the store on behalf of a viewer."""
CONNECT_S = 10.0
"""Bound of a try to reach the broker, after which the page says so; tries go on."""
MAX_SEARCHED = 200_000
"""Newest records of a topic that a search reads."""
DEMONSTRATIONS = "these are the demonstrations that train the tiny policy; the run begins after them"

log = structlog.get_logger()


class LiveSource(RunSource):
    """A run on its broker and store; one that has ``ended`` with its fold and lags reads neither again."""

    kind: Literal["run", "bundle"] = "run"

    def __init__(
        self, config: Config, folder: RunFolder | None, ended: tuple[RunState, list[Lag] | None] | None = None
    ) -> None:
        self.config = config
        self._bus = config.bus
        self._folder = folder
        self._inputs: ReportInputs | None = None
        self._ended = ended is not None
        self.state = ended[0] if ended else RunState()
        self.progress = Progress(True) if ended else Progress(False, "reading begins")
        self._wanted = asyncio.Event()
        self._viewed_s = 0.0
        self._asked_s = 0.0
        self._store: AsyncStore | None = None
        self._connecting = asyncio.Lock()
        self._reading_lags = asyncio.Lock()
        self._reading_traces = asyncio.Lock()
        self._timeline: tuple[float, Timeline] | None = None
        """When it is to be read again, and the spans."""
        self._lags: tuple[float, list[Lag] | None] = (math.inf, ended[1]) if ended else (-LAGS_MAX_AGE_S, [])
        self._lag_reader: LagReader | None = None
        self._tasks: TaskSet | None = None
        self._connections = contextlib.AsyncExitStack()

    @property
    def folder(self) -> RunFolder | None:
        """The run's folder once it exists; in containers another process may create it, or none."""
        return self._folder if self._folder is not None and self._folder.config_file.exists() else None

    @property
    def now_ms(self) -> int:
        """Return the time of this machine's clock."""
        return now_ms()

    def journal(self) -> PhaseLog:
        """Return the phases in the run's folder; empty without a folder."""
        return self.folder.journal() if self.folder is not None else PhaseLog()

    @property
    def has_begun(self) -> bool:
        """Whether the run has had topics, as far as its folder has a note of them."""
        return self.folder is not None and had_topics(self.folder, self.journal())

    def note_viewer(self) -> None:
        """Read for another :data:`VIEWER_TIMEOUT_S`."""
        self._viewed_s = asyncio.get_running_loop().time()
        self._wanted.set()

    async def run(self) -> None:
        """Fold the topics while there are viewers; retry while the broker is away or lacks the topics."""
        try:
            while True:
                await self._wanted.wait()
                try:
                    await self._follow()
                except (UserError, KafkaError, OSError) as error:
                    if self.progress.text != str(error):
                        log.warning("reading the run's topics failed", reason=str(error), again_after_s=RETRY_S)
                    self.progress = Progress(False, str(error))
                await asyncio.sleep(RETRY_S)
        finally:
            await self.close()

    async def close(self) -> None:
        """Close the connections to broker and store."""
        await self._connections.aclose()
        if self._store is not None:
            await asyncio.to_thread(self._store.session.cluster.shutdown)
            self._store = None

    async def _follow(self) -> None:
        """Fold the topics from their beginning; return once a run that had no topics has created them."""
        async with topic_reader(self.config.bus, has_begun=self.has_begun) as (bus, records):
            self._bus, early = bus, bus is not self.config.bus
            follower = RunFollower(bus, records, 1.0, frozenset(topic.name for topic in SHOWN))
            self.state = follower.progress
            ends = await records.end_offsets(sorted(records.assignment()))
            while True:
                if asyncio.get_running_loop().time() - self._viewed_s > VIEWER_TIMEOUT_S:
                    self._wanted.clear()
                    await self._wanted.wait()
                await follower.poll()
                await asyncio.sleep(0)
                if ends:
                    unread = sum([max(0, end - await records.position(place)) for place, end in ends.items()])
                    ends = ends if unread else {}
                    text = f"{unread:,} records left to read" if unread else DEMONSTRATIONS if early else ""
                    self.progress = Progress(not unread, text)
                if early and await self._has_begun(records):
                    return

    async def _has_begun(self, records: AIOKafkaConsumer) -> bool:
        """Return whether the run has its own topics by now; the broker is asked once in :data:`RETRY_S`."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._asked_s < RETRY_S:
            return False
        self._asked_s = now_s
        return bool(shown_topics(self.config.bus) & set(await records.topics()))

    async def store(self) -> AsyncStore:
        """Return the store, connected; raise :class:`ServiceUnavailable` if it does not answer."""
        async with self._connecting:
            if self._store is None or self._store.run != self._bus.run:
                settings = self.config.store
                settings = msgspec.structs.replace(settings, wait_s=min(settings.wait_s, REQUEST_TIMEOUT_S))
                session = self._store.session if self._store is not None else await connect_async(settings)
                # In a thread: the library of the object store takes a second to import.
                bounded = msgspec.structs.replace(settings, wait_s=TRY_S)
                objects = await asyncio.to_thread(open_objects, bounded)
                self._store = AsyncStore(session, self._bus.run, settings.blob_cache_mb, wait_s=2.0, objects=objects)
            return self._store

    async def steps(self, trajectory_id: str) -> list[Observation]:
        """Return the stored observations of a trajectory by step."""
        return await (await self.store()).steps(trajectory_id)

    async def screenshot(self, sha256: str) -> bytes:
        """Return a stored screenshot; raise :class:`NotFound` without one."""
        try:
            return await (await self.store()).blob_named(sha256)
        except MissingBlob as missing:
            raise NotFound(str(missing)) from None

    async def segments(self, trajectory_id: str) -> dict[int, Sequence[RequestSegment]]:
        """Return the parts of each traced action's time, from spans that were read not long ago."""
        if self.folder is None or not self.config.telemetry.sampling:
            return {}
        clock, traces = asyncio.get_running_loop().time, self.folder.path / "traces"
        async with self._reading_traces:  # Calls at the same time share one, which has the size of all spans.
            if self._timeline is None or clock() > self._timeline[0]:
                began_s, self._timeline = clock(), None
                read = await asyncio.to_thread(lambda: Timeline(lines_in(traces)))
                self._timeline = clock() + max(TRACES_MAX_AGE_S, 5 * (clock() - began_s)), read
            return action_segments(self._timeline[1], trajectory_id)

    async def records(self, topic: Topic, needle: bytes, limit: int) -> list[BundleRecord]:
        """Return the newest records with ``needle`` in key or value."""
        searched = present_records(bound_waits(self._bus), topic, newest=MAX_SEARCHED if needle else limit)
        return await asyncio.to_thread(newest_records, searched, needle, limit)

    async def lags(self) -> list[Lag] | None:
        """Return the lag of each group, of at most :data:`LAGS_MAX_AGE_S` ago; None if the broker does not answer."""
        now_s = asyncio.get_running_loop().time()
        async with self._reading_lags:
            if now_s - self._lags[0] >= LAGS_MAX_AGE_S:
                if self._lag_reader is None:
                    reader = lag_reader(bound_waits(self.config.bus))
                    self._lag_reader = await self._connections.enter_async_context(reader)
                self._lags = now_s, await self._lag_reader.read()
        return self._lags[1]

    def task_set(self) -> TaskSet:
        """Return the tasks in the run's folder; empty without a folder."""
        if self._tasks is None and self.folder is not None:
            self._tasks = self.folder.tasks()
        return self._tasks or TaskSet([])

    async def report_inputs(self) -> ReportInputs:
        """Return the inputs of a report; the metrics of a run that goes on are read again each time."""
        if self._inputs is not None:
            return self._inputs
        metrics = self.folder.path / "metrics" if self.folder is not None else None
        readings = await asyncio.to_thread(MetricsReader, metrics)
        usage = read_usage(metrics / USAGE_FILE) if metrics is not None else []
        inputs = self.inputs_with(readings, await self.lags(), usage)
        self._inputs = inputs if self._ended else None
        return inputs

    async def dead_letters(self, topic: Topic | None) -> list[DeadLetterSummary] | list[DeadLetter]:
        """Return the number of dead letters by topic, or the letters of one topic."""
        if topic is None:
            return await asyncio.to_thread(dead_letters.summarize_letters, bound_waits(self._bus))
        return await asyncio.to_thread(dead_letters.read_letters, bound_waits(self._bus), topic)


def bound_waits(bus: Bus) -> Bus:
    """Return the bus with its waits bounded by :data:`REQUEST_TIMEOUT_S`, for requests of viewers."""
    return msgspec.structs.replace(bus, wait_s=min(bus.wait_s, REQUEST_TIMEOUT_S))


def had_topics(folder: RunFolder, journal: PhaseLog) -> bool:
    """Return whether a run has had topics; runs of earlier versions have no note of them, but an outcome."""
    return bool(folder.topic_ids()) or journal.outcome != "unfinished"


@contextlib.asynccontextmanager
async def topic_reader(bus: Bus, *, has_begun: bool) -> AsyncIterator[tuple[Bus, AIOKafkaConsumer]]:
    """Yield the bus and a consumer, in no group, at the beginning of each existing topic of :data:`SHOWN`.

    While the run has no topics, these are the demonstrations' bus and topics. Raises :class:`ServiceUnavailable` if
    the broker does not answer or has neither.
    """
    patient = msgspec.structs.replace(bus, wait_s=min(bus.wait_s, CONNECT_S))
    async with read_alone(patient, "ui", fetch_min_bytes=FETCH_BYTES, fetch_max_wait_ms=FETCH_MS) as records:
        for candidate in (bus, bus.of_demonstrations):
            if partitions := await list_partitions(candidate):
                records.assign(partitions)
                await records.seek_to_beginning(*partitions)
                break
        else:
            reason = "the run's topics are gone" if has_begun else "the run has not begun"
            raise ServiceUnavailable(f"{reason}: the broker at {bus.servers} has no topics {bus.prefix}*")
        yield candidate, records


def shown_topics(bus: Bus) -> set[str]:
    """Return the names on the broker of the topics that the page folds."""
    return {bus.prefix + topic.name for topic in SHOWN}


async def list_partitions(bus: Bus) -> list[TopicPartition]:
    """Return the partitions of the shown topics that exist."""
    admin = AIOKafkaAdminClient(**auth.kafka_arguments(bus), client_id="ui")
    await admin.start()
    try:
        # Only existing topics are described: the broker may create one that is asked for by name.
        names = sorted(set(await admin.list_topics()) & shown_topics(bus))
        topics: list[dict[str, Any]] = await admin.describe_topics(names) if names else []
    finally:
        await admin.close()
    return [
        TopicPartition(topic["topic"], partition["partition"])
        for topic in topics
        if not topic["error_code"]
        for partition in topic["partitions"]
    ]
