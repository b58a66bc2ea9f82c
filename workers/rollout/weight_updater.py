"""Keeps the engine on the newest weights, as the rolling update allows, and announces what it serves.

The rolling update: each worker decides from all records of weights-serving whether it may switch weights now. A worker
*has tried* version v if it serves v or newer, or has reported that it failed to load v. Workers switch in the order of
(newest version tried, worker id), at most ``width`` at a time; those that have tried the version are not waited for. A
worker reports a version only after it serves it, so a stale view of the others makes a worker wait longer, never switch
too early: at least N - ``width`` of N workers generate at any time. A retry of a version that failed is not counted
against the width: what fails is the fetch, during which the old weights keep serving. A worker is alive by when its
heartbeats arrive here (:mod:`dart_streams.heartbeats`): no worker's clock is compared with another's.
"""

import asyncio
import time
from collections.abc import Collection, Mapping
from typing import NamedTuple, Self

import msgspec
import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError
from opentelemetry import metrics

from dart_streams.bus.clients import Publisher, create_consumer, event_of, has_reached, start_within
from dart_streams.bus.codec import Undecodable
from dart_streams.clock import now_ms
from dart_streams.config import Config
from dart_streams.deadline import Deadline
from dart_streams.errors import MAX_REASON
from dart_streams.heartbeats import Heartbeats
from dart_streams.telemetry import names
from dart_streams.telemetry.spans import ROOT, ActiveSpan, train_step_span
from dart_streams.telemetry.stall_detector import StallDetector
from topics import Topic, weights, weights_serving
from topics.transitions import WeightState
from topics.weights import WeightVersion
from topics.weights_serving import WeightsServing
from workers.rollout.engine import Engine, LoadFault

WATCHED: tuple[Topic, ...] = (weights.TOPIC, weights_serving.TOPIC)
POLL_TIMEOUT_S = 0.5
RETRY_INTERVAL_S = 5.0
"""Seconds before weights that failed to load are retried; a newer version is tried immediately."""

log = structlog.get_logger()
meter = metrics.get_meter(names.METER)
served_version = meter.create_gauge(names.ROLLOUT_VERSION)
pause_ms = meter.create_histogram(names.ROLLOUT_SWITCH_PAUSE_MS, "ms")
load_ms = meter.create_histogram(names.ROLLOUT_SWITCH_LOAD_MS, "ms")
switches = meter.create_counter(names.ROLLOUT_SWITCHES)


def may_switch(me: str, target: int, serving: Mapping[str, WeightsServing], alive: Collection[str], width: int) -> bool:
    """Return whether worker ``me`` may switch to version ``target`` now.

    ``serving`` has the newest record of each worker, its own included. One that is not ``alive`` is not waited for. At
    most ``width`` workers switch at the same time.
    """
    own = (serving[me].tried, me) if me in serving else (-1, me)
    ahead = [
        record
        for worker_id, record in serving.items()
        if worker_id != me and worker_id in alive and record.tried < target and (record.tried, worker_id) < own
    ]
    return len(ahead) < width


class WeightWatcher:
    """Folds ``weights`` and ``weights-serving`` from their beginnings, without a group; ``changed``: at each record."""

    def __init__(self, config: Config, worker_id: str, publisher: Publisher) -> None:
        self.bus = config.bus
        self.publisher = publisher
        self.topics = {config.bus.prefix + topic.name: topic for topic in WATCHED}
        self.weights = WeightState(model_id=config.policy.model_id)
        self.kept = config.trainer.keep_versions
        self.recent: dict[int, WeightVersion] = {}
        """The versions whose files the trainer keeps, by number, the oldest first."""
        self.serving: dict[str, WeightsServing] = {}
        self.heartbeats = Heartbeats()
        self.changed = asyncio.Event()
        what = f"a first version of {self.weights.model_id!r} on {config.bus.prefix}{weights.TOPIC.name}"
        self.stalls = StallDetector(log, what, config.telemetry.stall_s)
        self.records: AIOKafkaConsumer = create_consumer(config.bus, group=None, client_id=f"{worker_id}-weights")

    async def __aenter__(self) -> Self:
        """Seek to the beginning of both topics; raise ServiceUnavailable if the broker or a topic is not there."""
        partitions = [
            TopicPartition(name, number)
            for name, topic in self.topics.items()
            for number in range(await self.publisher.partitions_of(topic))
        ]
        await start_within(self.records, self.bus)
        self.records.assign(partitions)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.records.stop()

    async def _poll(self, seconds: float) -> None:
        """Apply new records, waiting at most ``seconds`` for a first one."""
        for batch in (await self.records.getmany(timeout_ms=int(seconds * 1000))).values():
            for record in batch:
                self._apply(record)

    async def catch_up(self) -> None:
        """Return when every record published by now was applied; :meth:`watch` must run."""
        ends = await self.records.end_offsets(self.records.assignment())
        while not await has_reached(self.records, ends):
            await wait_until(self.next_change(), POLL_TIMEOUT_S)

    async def watch(self) -> None:
        """Apply records as they come, until cancelled."""
        while True:
            await self._poll(POLL_TIMEOUT_S)

    async def first_version(self) -> WeightVersion:
        """Return the newest version published by now, or the first one as soon as the trainer publishes it."""
        ends = await self.records.end_offsets(self.records.assignment())
        while self.weights.newest is None or not await has_reached(self.records, ends):
            await self._poll(POLL_TIMEOUT_S)
            self.stalls.check()
        return self.weights.newest

    def before(self, version: WeightVersion) -> list[WeightVersion]:
        """Return what may be served in place of a version: the full one that it is made from, then older ones."""
        full = version.full_before()
        older = [one for number, one in reversed(self.recent.items()) if number < version.version]
        return [*([full] if full else []), *older]

    async def wait_for_newer(self, than: WeightVersion, seconds: float) -> None:
        """Return when there is a newer version, after ``seconds`` at the latest."""
        deadline = Deadline(seconds)
        while self.weights.version <= than.version and not deadline.expired:
            await self._poll(min(POLL_TIMEOUT_S, seconds))

    def next_change(self) -> asyncio.Event:
        """Return an event that is set at the next record."""
        self.changed.clear()
        return self.changed

    def _apply(self, record: ConsumerRecord) -> None:
        try:
            event = event_of(self.topics[record.topic], record)
        except Undecodable as error:
            log.error("record skipped", topic=record.topic, offset=record.offset, reason=str(error))
            return
        if isinstance(event, WeightVersion):
            self._accept(event)
        else:
            self.serving[event.worker_id] = event
            self.heartbeats.note(event.worker_id, event.alive_ms)
        self.changed.set()

    def _accept(self, event: WeightVersion) -> None:
        if self.weights.admits(event):
            self.recent[event.version] = event
            while len(self.recent) > self.kept:
                del self.recent[next(iter(self.recent))]
        self.weights = self.weights.accept(event)


async def wait_until(event: asyncio.Event, seconds: float) -> None:
    """Return when ``event`` is set, at the latest after ``seconds``."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


class FirstVersion(NamedTuple):
    """The version that a worker starts with; ``failed_version`` is a newer one that it could not load, if any."""

    version: int
    failed_version: int | None = None
    error: str | None = None


class WeightUpdater:
    """One worker's weights. A version is announced as served only after it is."""

    def __init__(
        self,
        config: Config,
        worker_id: str,
        engine: Engine,
        publisher: Publisher,
        watcher: WeightWatcher,
        first: FirstVersion,
    ) -> None:
        self.settings = config.rollout
        self.run = config.bus.run
        self.engine = engine
        self.publisher = publisher
        self.watcher = watcher
        now = now_ms()
        self.own = WeightsServing(
            worker_id=worker_id,
            version=first.version,
            since_ms=now,
            alive_ms=now,
            failed_version=first.failed_version,
            error=first.error,
            sha256=engine.digest() or msgspec.UNSET,
        )
        self.retry = Deadline(RETRY_INTERVAL_S if first.failed_version is not None else 0.0)

    async def send_heartbeat(self) -> None:
        """Publish what is served now, and that the engine is alive; raise EngineDead if it is not."""
        await self.engine.check()
        self.own = msgspec.structs.replace(self.own, alive_ms=now_ms())
        served_version.set(self.own.version)
        try:
            await self.publisher.publish(weights_serving.TOPIC, self.own)
        except KafkaError as error:
            log.warning("heartbeat not sent", reason=str(error) or type(error).__name__)

    async def send_heartbeats(self) -> None:
        """Publish a heartbeat every ``rollout.heartbeat_s``, also during a switch."""
        while True:
            await self.send_heartbeat()
            await asyncio.sleep(self.settings.heartbeat_s)

    async def update(self) -> None:
        """Switch whenever there is a newer version and the rolling update allows it."""
        while True:
            changed = self.watcher.next_change()
            if self.due() is not None:
                # Another worker's first record may be on its way: without it, two would switch at once.
                await self.watcher.catch_up()
                if (target := self.due()) is not None:
                    await self.switch(target)
                    continue
            await wait_until(changed, self.settings.heartbeat_s)

    def due(self) -> WeightVersion | None:
        """Return the version to switch to now, if any."""
        target = self.watcher.weights.newest
        if target is None or target.version <= self.own.version:
            return None
        if self.own.failed_version == target.version and not self.retry.expired:
            return None
        everyone = {**self.watcher.serving, self.own.worker_id: self.own}
        alive = self.watcher.heartbeats.alive(self.settings.liveness_s)
        mine = may_switch(self.own.worker_id, target.version, everyone, alive, self.settings.roll_width)
        return target if mine else None

    async def switch(self, target: WeightVersion) -> None:
        """Load ``target`` and announce it, or announce that it failed; the old weights then keep serving."""
        started = time.monotonic()
        span = ActiveSpan(
            names.SPAN_SWITCH,
            parent=ROOT,
            links=[train_step_span(self.run, target.version)],
            attributes={names.ATTR_VERSION: target.version, names.ATTR_HOST: self.own.worker_id},
        )
        try:
            with span.use():
                paused = await self.engine.load(target)
        except LoadFault as fault:
            log.error("weights not loaded", version=target.version, serving=self.own.version, reason=str(fault))
            switches.add(1, {"result": "failed"})
            self.retry = Deadline(RETRY_INTERVAL_S)
            self.own = msgspec.structs.replace(self.own, failed_version=target.version, error=str(fault)[:MAX_REASON])
        else:
            took = (time.monotonic() - started) * 1000
            log.info("weights switched", version=target.version, pause_ms=round(paused, 1), load_ms=round(took, 1))
            switches.add(1, {"result": "served"})
            pause_ms.record(paused)
            load_ms.record(took)
            now = now_ms()
            self.own = WeightsServing(
                worker_id=self.own.worker_id,
                version=target.version,
                since_ms=now,
                alive_ms=now,
                pause_ms=paused,
                sha256=self.engine.digest() or msgspec.UNSET,
            )
        finally:
            span.end()
        await self.send_heartbeat()
