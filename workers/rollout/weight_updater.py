"""Keeps the engine on the newest weights, as the rolling update allows, and announces what it serves."""

import asyncio
import time

import msgspec
import structlog
from aiokafka.errors import KafkaError
from opentelemetry import metrics

from dart_streams.bus.clients import Publisher
from dart_streams.clock import now_ms
from dart_streams.config import Config
from dart_streams.telemetry import names
from dart_streams.telemetry.spans import ROOT, ActiveSpan, train_step
from topics import weights_serving
from topics.weights import WeightVersion
from topics.weights_serving import WeightsServing
from workers.rollout.engine import Engine, LoadFault
from workers.rollout.rolling_update import may_switch
from workers.rollout.weight_watcher import WeightWatcher, wait_until

log = structlog.get_logger()
meter = metrics.get_meter(names.METER)
served_version = meter.create_gauge(names.ROLLOUT_VERSION)
pause_ms = meter.create_histogram(names.ROLLOUT_SWITCH_PAUSE_MS, "ms")
load_ms = meter.create_histogram(names.ROLLOUT_SWITCH_LOAD_MS, "ms")
switches = meter.create_counter(names.ROLLOUT_SWITCHES)

RETRY_S = 5.0
"""Seconds before weights that failed to load are retried; a newer version is tried immediately."""


class WeightUpdater:
    """One worker's weights. A version is announced as served only after it is."""

    def __init__(
        self, config: Config, worker_id: str, engine: Engine, publisher: Publisher, watcher: WeightWatcher, first: int
    ) -> None:
        self.settings = config.rollout
        self.run = config.bus.run
        self.engine = engine
        self.publisher = publisher
        self.watcher = watcher
        now = now_ms()
        self.own = WeightsServing(worker_id=worker_id, version=first, since_ms=now, alive_ms=now)
        self.retry_at = 0.0

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
        if self.own.failed_version == target.version and time.monotonic() < self.retry_at:
            return None
        everyone = {**self.watcher.serving, self.own.worker_id: self.own}
        liveness_ms = int(self.settings.liveness_s * 1000)
        mine = may_switch(self.own.worker_id, target.version, everyone, now_ms(), liveness_ms, self.settings.roll_width)
        return target if mine else None

    async def switch(self, target: WeightVersion) -> None:
        """Load ``target`` and announce it, or announce that it failed; the old weights then keep serving."""
        started = time.monotonic()
        span = ActiveSpan(
            names.SPAN_SWITCH,
            parent=ROOT,
            links=[train_step(self.run, target.version)],
            attributes={names.ATTR_VERSION: target.version, names.ATTR_HOST: self.own.worker_id},
        )
        try:
            with span.use():
                paused = await self.engine.load(target)
        except LoadFault as fault:
            log.error("weights not loaded", version=target.version, serving=self.own.version, reason=str(fault))
            switches.add(1, {"result": "failed"})
            self.retry_at = time.monotonic() + RETRY_S
            self.own = msgspec.structs.replace(self.own, failed_version=target.version, error=str(fault))
        else:
            took = (time.monotonic() - started) * 1000
            log.info("weights switched", version=target.version, pause_ms=round(paused, 1), load_ms=round(took, 1))
            switches.add(1, {"result": "served"})
            pause_ms.record(paused)
            load_ms.record(took)
            now = now_ms()
            self.own = WeightsServing(
                worker_id=self.own.worker_id, version=target.version, since_ms=now, alive_ms=now, pause_ms=paused
            )
        finally:
            span.end()
        await self.send_heartbeat()
