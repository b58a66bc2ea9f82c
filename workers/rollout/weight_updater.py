"""Weight updates: switch the engine to the newest version in turn, and announce what it serves.

Rolling update: a worker *has tried* version v if it serves v or newer, or failed to load v. Workers switch in order of
(newest version tried, worker id), at most ``width`` at a time, and do not wait for workers that have tried the version.
A version is announced only once served, so a stale view delays a switch and never allows an early one: at least N -
``width`` of N workers generate at any time. Retries of a failed version do not count against the width, as the old
weights serve meanwhile. Heartbeats count by arrival (:mod:`dart_streams.heartbeats`); clocks are never compared.
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

from dart_streams.background import wait_at_most
from dart_streams.bus.clients import Publisher, create_consumer, event_of, has_reached, start_within
from dart_streams.bus.codec import Undecodable
from dart_streams.clock import now_ms
from dart_streams.config import Config
from dart_streams.deadline import Deadline
from dart_streams.errors import MAX_REASON
from dart_streams.heartbeats import Heartbeats
from dart_streams.telemetry import names
from dart_streams.telemetry.instruments import create_counter, create_gauge, create_histogram
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
"""Seconds before a failed version is retried; a newer one is tried at once."""

log = structlog.get_logger()
meter = metrics.get_meter(names.METER)
served_version = create_gauge(meter, names.ROLLOUT_VERSION)
pause_ms = create_histogram(meter, names.ROLLOUT_SWITCH_PAUSE_MS)
load_ms = create_histogram(meter, names.ROLLOUT_SWITCH_LOAD_MS)
switches = create_counter(meter, names.ROLLOUT_SWITCHES)


def may_switch(me: str, target: int, serving: Mapping[str, WeightsServing], alive: Collection[str], width: int) -> bool:
    """Return whether worker ``me`` may switch to ``target``: fewer than ``width`` live workers are due before it."""
    own = (serving[me].tried, me) if me in serving else (-1, me)
    ahead = [
        record
        for worker_id, record in serving.items()
        if worker_id != me and worker_id in alive and record.tried < target and (record.tried, worker_id) < own
    ]
    return len(ahead) < width


class WeightWatcher:
    """Folds ``weights`` and ``weights-serving`` from their beginnings; each record sets ``changed``."""

    def __init__(self, config: Config, worker_id: str, publisher: Publisher) -> None:
        self.bus = config.bus
        self.publisher = publisher
        self.topics = {config.bus.prefix + topic.name: topic for topic in WATCHED}
        self.weights = WeightState(model_id=config.policy.model_id)
        self.kept = config.trainer.keep_versions
        self.recent: dict[int, WeightVersion] = {}
        """Versions whose files the trainer keeps, by number, oldest first."""
        self.serving: dict[str, WeightsServing] = {}
        self.heartbeats = Heartbeats()
        self.changed = asyncio.Event()
        what = f"a first version of {self.weights.model_id!r} on {config.bus.prefix}{weights.TOPIC.name}"
        self.stalls = StallDetector(log, what, config.telemetry.stall_s)
        self.records: AIOKafkaConsumer = create_consumer(config.bus, group=None, client_id=f"{worker_id}-weights")

    async def __aenter__(self) -> Self:
        """Seek to the beginning of both topics; raise ServiceUnavailable."""
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
        """Apply new records; wait at most ``seconds`` for the first."""
        for batch in (await self.records.getmany(timeout_ms=int(seconds * 1000))).values():
            for record in batch:
                self._apply(record)

    async def catch_up(self) -> None:
        """Wait until every record published by now is applied; :meth:`watch` must run."""
        ends = await self.records.end_offsets(self.records.assignment())
        while not await has_reached(self.records, ends):
            await wait_at_most(self.next_change(), POLL_TIMEOUT_S)

    async def watch(self) -> None:
        """Apply records until cancelled."""
        while True:
            await self._poll(POLL_TIMEOUT_S)

    async def first_version(self) -> WeightVersion:
        """Return the newest published version, or wait for the first."""
        ends = await self.records.end_offsets(self.records.assignment())
        while self.weights.newest is None or not await has_reached(self.records, ends):
            await self._poll(POLL_TIMEOUT_S)
            self.stalls.check()
        return self.weights.newest

    def before(self, version: WeightVersion) -> list[WeightVersion]:
        """Return alternatives to a version: its full version, then older ones."""
        full = version.full_before()
        older = [other for number, other in reversed(self.recent.items()) if number < version.version]
        return [*([full] if full else []), *older]

    async def wait_for_newer(self, than: WeightVersion, seconds: float) -> None:
        """Wait up to ``seconds`` for a newer version."""
        deadline = Deadline(seconds)
        while self.weights.version <= than.version and not deadline.expired:
            await self._poll(min(POLL_TIMEOUT_S, seconds))

    def next_change(self) -> asyncio.Event:
        """Return an event that the next record sets."""
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


class FirstVersion(NamedTuple):
    """Initial version of a worker; ``failed_version`` is a newer one that did not load."""

    version: int
    failed_version: int | None = None
    error: str | None = None


class WeightUpdater:
    """Updates one worker's weights; announces a version only once it is served."""

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
        """Publish the served version; raise EngineDead if the engine is dead."""
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
        """Switch to newer versions when the rolling update allows it."""
        while True:
            changed = self.watcher.next_change()
            if self.due() is not None:
                # Without a pending first record of another worker, two would switch at once.
                await self.watcher.catch_up()
                if (target := self.due()) is not None:
                    await self.switch(target)
                    continue
            await wait_at_most(changed, self.settings.heartbeat_s)

    def due(self) -> WeightVersion | None:
        """Return the version to switch to now, or None."""
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
        """Load ``target``; announce it, or its failure."""
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
