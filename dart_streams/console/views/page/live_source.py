"""A run's live topics and store as the page's source.

It reads with a consumer of no group that commits nothing, and only while somebody looks at the page: a page that nobody
has opened costs the broker no request. There is no producer here, so a login that may only read is enough.
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

from dart_streams.bus.clients import FETCH_BYTES, create_consumer, start_within
from dart_streams.bus.lag import Lag, LagReader, lag_reader
from dart_streams.clock import now_ms
from dart_streams.config import Bus, Config
from dart_streams.config.tasks import TaskSet
from dart_streams.connection import auth
from dart_streams.console.lineage.traces import RequestSegment, Timeline, lines_in
from dart_streams.console.repair import dead_letters
from dart_streams.console.repair.dead_letters import DeadLetter, DeadLetterSummary
from dart_streams.console.runs.bundle import BundleRecord
from dart_streams.console.runs.metrics_reader import MetricsReader
from dart_streams.console.runs.process_usage import USAGE_FILE, read_usage
from dart_streams.console.runs.run_folder import PhaseLog, RunFolder
from dart_streams.console.runs.run_follower import RunFollower
from dart_streams.console.runs.run_log import present_records
from dart_streams.console.runs.run_state import RunState
from dart_streams.console.views.page.bundle_source import segments_of
from dart_streams.console.views.page.source import SCANNED, SHOWN, NotFound, Progress, newest, trained_rows
from dart_streams.console.views.report_metrics import ReportInputs
from dart_streams.errors import ServiceUnavailable, UserError
from dart_streams.store import AsyncStore, MissingBlob, connect_async
from topics import Topic
from topics.observations import Observation

IDLE_S = 60.0
"""Reading stops this long after the last viewer has gone."""
RETRY_S = 2.0
FETCH_MS = 300
TRACES_S = 10.0
"""A run's spans are read again after this long."""
LAGS_S = 4.0
ASKED_S = 3.0
"""What a viewer asks for and does not answer, a topic, the broker or the store, is waited for so long."""
DEMONSTRATIONS = "the tiny policy is made first: these are its demonstrations, and the run begins after them"

log = structlog.get_logger()


class LiveSource:
    """A run on its broker and store; see :class:`~dart_streams.console.views.page.source.RunSource`."""

    kind: Literal["run", "bundle"] = "run"

    def __init__(self, config: Config, folder: RunFolder | None) -> None:
        self.config = config
        self._bus = config.bus
        self._folder = folder
        self.state = RunState()
        self.progress = Progress(False, "reading begins")
        self._wanted = asyncio.Event()
        self._seen_s = 0.0
        self._asked_s = 0.0
        self._store: AsyncStore | None = None
        self._connecting = asyncio.Lock()
        self._asking = asyncio.Lock()
        self._timeline: tuple[float, Timeline] | None = None
        self._lags: tuple[float, list[Lag] | None] = (-LAGS_S, [])
        self._lag_reader: LagReader | None = None
        self._tasks: TaskSet | None = None
        self._inputs: ReportInputs | None = None
        self._connections = contextlib.AsyncExitStack()

    @property
    def folder(self) -> RunFolder | None:
        """The run's folder, once it is there: in containers another process makes it, or none."""
        return self._folder if self._folder is not None and self._folder.config_file.exists() else None

    @property
    def now_ms(self) -> int:
        """See :class:`~dart_streams.console.views.page.source.RunSource`."""
        return now_ms()

    def journal(self) -> PhaseLog:
        """See :class:`~dart_streams.console.views.page.source.RunSource`."""
        return self.folder.journal() if self.folder is not None else PhaseLog()

    def note_viewer(self) -> None:
        """See :class:`~dart_streams.console.views.page.source.RunSource`."""
        self._seen_s = asyncio.get_running_loop().time()
        self._wanted.set()

    async def run(self) -> None:
        """Fold the topics while somebody looks; a broker that is away, or lacks the topics, is tried again."""
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
        """See :class:`~dart_streams.console.views.page.source.RunSource`."""
        await self._connections.aclose()
        if self._store is not None:
            await asyncio.to_thread(self._store.session.cluster.shutdown)
            self._store = None

    def rest(self, inputs: ReportInputs) -> None:
        """Take the fold and the figures of a run that has just ended, instead of reading them."""
        self.state, self.progress = inputs.progress, Progress(True)
        self._lags, self._inputs = (math.inf, inputs.lags), inputs

    async def _follow(self) -> None:
        """Fold from the beginning of the topics, and go on; return when a run that had none yet has got its own."""
        async with readers(self.config.bus) as (bus, records):
            self._bus, early = bus, bus is not self.config.bus
            follower = RunFollower(bus, records, 1.0, frozenset(topic.name for topic in SHOWN))
            self.state = follower.progress
            ends = await records.end_offsets(sorted(records.assignment()))
            while True:
                await self._until_wanted()
                await follower.poll()
                await asyncio.sleep(0)
                if ends:
                    left = sum([max(0, end - await records.position(place)) for place, end in ends.items()])
                    ends = ends if left else {}
                    said = DEMONSTRATIONS if early else ""
                    self.progress = Progress(not left, f"{left:,} records are still to be read" if left else said)
                if early and await self._has_begun(records):
                    return

    async def _has_begun(self, records: AIOKafkaConsumer) -> bool:
        """Say whether the run has topics of its own by now; the broker is asked after each :data:`RETRY_S` only."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._asked_s < RETRY_S:
            return False
        self._asked_s = now_s
        return bool(shown_topics(self.config.bus) & set(await records.topics()))

    async def _until_wanted(self) -> None:
        if asyncio.get_running_loop().time() - self._seen_s > IDLE_S:
            self._wanted.clear()
            await self._wanted.wait()

    async def store(self) -> AsyncStore:
        """Return the store, connected; raise :class:`ServiceUnavailable` if it does not answer."""
        async with self._connecting:
            if self._store is None or self._store.run != self._bus.run:
                settings = self.config.store
                settings = msgspec.structs.replace(settings, wait_s=min(settings.wait_s, ASKED_S))
                session = self._store.session if self._store is not None else await connect_async(settings)
                self._store = AsyncStore(session, self._bus.run, settings.blob_cache_mb, wait_s=2.0)
            return self._store

    async def steps(self, trajectory_id: str) -> list[Observation]:
        """See :class:`~dart_streams.console.views.page.source.RunSource`."""
        return await (await self.store()).steps(trajectory_id)

    async def screenshot(self, sha256: str) -> bytes:
        """See :class:`~dart_streams.console.views.page.source.RunSource`."""
        try:
            return await (await self.store()).blob_named(sha256)
        except MissingBlob as missing:
            raise NotFound(str(missing)) from None

    async def segments(self, trajectory_id: str) -> dict[int, Sequence[RequestSegment]]:
        """See :class:`~dart_streams.console.views.page.source.RunSource`."""
        if self.folder is None or not self.config.telemetry.sampling:
            return {}
        now_s = asyncio.get_running_loop().time()
        if self._timeline is None or now_s - self._timeline[0] > TRACES_S:
            traces = self.folder.path / "traces"
            self._timeline = now_s, await asyncio.to_thread(lambda: Timeline(lines_in(traces)))
        return segments_of(self._timeline[1], trajectory_id)

    async def records(self, topic: Topic, needle: bytes, limit: int) -> list[BundleRecord]:
        """See :class:`~dart_streams.console.views.page.source.RunSource`."""
        looked_at = present_records(asked(self._bus), topic, newest=SCANNED if needle else limit)
        return await asyncio.to_thread(newest, looked_at, needle, limit)

    async def lags(self) -> list[Lag] | None:
        """See :class:`~dart_streams.console.views.page.source.RunSource`; read again after a few seconds only."""
        now_s = asyncio.get_running_loop().time()
        async with self._asking:
            if now_s - self._lags[0] >= LAGS_S:
                if self._lag_reader is None:
                    self._lag_reader = await self._connections.enter_async_context(lag_reader(asked(self.config.bus)))
                self._lags = now_s, await self._lag_reader.read()
        return self._lags[1]

    def task_set(self) -> TaskSet:
        """See :class:`~dart_streams.console.views.page.source.RunSource`."""
        if self._tasks is None:
            if self.folder is None:
                return TaskSet([])
            self._tasks = self.folder.tasks()
        return self._tasks

    async def report_inputs(self) -> ReportInputs:
        """Return what a report is computed from; a run's metrics are large, so they are not kept."""
        if self._inputs is not None:
            return self._inputs
        folder = self.folder
        metrics = folder.path / "metrics" if folder is not None else None
        return ReportInputs(
            config=self.config,
            tasks=self.task_set(),
            journal=self.journal(),
            progress=self.state,
            trained=trained_rows(self.state),
            readings=await asyncio.to_thread(MetricsReader, metrics),
            lags=await self.lags(),
            usage=read_usage(metrics / USAGE_FILE) if metrics is not None else [],
        )

    async def dead_letters(self, topic: Topic | None) -> list[DeadLetterSummary] | list[DeadLetter]:
        """See :class:`~dart_streams.console.views.page.source.RunSource`."""
        if topic is None:
            return await asyncio.to_thread(dead_letters.summarize_letters, asked(self._bus))
        return await asyncio.to_thread(dead_letters.read_letters, asked(self._bus), topic)


def asked(bus: Bus) -> Bus:
    """Return the bus for a question of a viewer, who has to know soon that there is no answer."""
    return msgspec.structs.replace(bus, wait_s=min(bus.wait_s, ASKED_S))


@contextlib.asynccontextmanager
async def readers(bus: Bus) -> AsyncIterator[tuple[Bus, AIOKafkaConsumer]]:
    """Yield a consumer at the beginning of every topic of :data:`SHOWN` that there is, in no group, and their bus.

    That is the one of the demonstrations while the run has no topics. Raises :class:`ServiceUnavailable` if there is no
    broker, or none of the topics.
    """
    records = create_consumer(bus, group=None, client_id="ui", fetch_min_bytes=FETCH_BYTES, fetch_max_wait_ms=FETCH_MS)
    await start_within(records, bus)
    try:
        for one in (bus, bus.of_demonstrations):
            if places := await partitions(one):
                records.assign(places)
                await records.seek_to_beginning(*places)
                break
        else:
            raise ServiceUnavailable(f"the run has not begun: the broker at {bus.servers} has no topics {bus.prefix}*")
        yield one, records
    finally:
        await records.stop()


def shown_topics(bus: Bus) -> set[str]:
    """Return the names on the broker of the topics that the page folds."""
    return {bus.prefix + topic.name for topic in SHOWN}


async def partitions(bus: Bus) -> list[TopicPartition]:
    """Return the partitions of the topics that there are."""
    admin = AIOKafkaAdminClient(**auth.kafka_arguments(bus), client_id="ui")
    await admin.start()
    try:
        # Only topics that exist are described: a broker may create one that is asked for by name.
        there = set(await admin.list_topics()) & shown_topics(bus)
        found: list[dict[str, Any]] = await admin.describe_topics(sorted(there)) if there else []
    finally:
        await admin.close()
    return [
        TopicPartition(topic["topic"], partition["partition"])
        for topic in found
        if not topic["error_code"]
        for partition in topic["partitions"]
    ]
