"""The rollout worker: answers action requests with the newest weights.

=============  ==================================================================================================
consumes       ``action-requests`` (group ``rollout``), ``weights`` and ``weights-serving`` (whole, without a group)
produces       ``actions`` (to the partition that the request names), ``weights-serving``, ``action-requests.dlq``
waits for      a first weight version; then requests; then newer weights and its turn to switch
unblocked by   the trainer; environment workers; the other rollout workers' announcements, or their silence
=============  ==================================================================================================
"""

import asyncio
import contextlib
import os
import signal
import sys

import msgspec
import structlog

from dart_streams.bus.clients import Publisher
from dart_streams.config import Config
from dart_streams.telemetry import setup
from topics import actions
from workers.rollout import vllm_settings
from workers.rollout.engine import Engine, LoadFault
from workers.rollout.request_consumer import RequestConsumer
from workers.rollout.request_server import RequestServer
from workers.rollout.weight_updater import RETRY_S, WeightUpdater
from workers.rollout.weight_watcher import WeightWatcher
from workers.runtime.lifecycle import cancel_on_stop, freeze_gc, run_until_first_exit, stop_on_signals

log = structlog.get_logger()


def run(config: Config, worker_id: str) -> int:
    """Be rollout worker ``worker_id`` until SIGTERM or SIGINT; return the exit code.

    Raises
    ------
    ServiceUnavailable
        If the broker or the database does not answer within its bound.
    """
    setup.start(config, worker_id)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))  # until the event loop takes over: imports take a while
    try:
        code = asyncio.run(live(config, worker_id, engine_of(config)))
    finally:
        setup.stop()
    if config.rollout.engine == "vllm":
        # Everything is closed but vLLM and torch, which need seconds to end in order, and abort if they may not.
        sys.stderr.flush()
        os._exit(code)
    return code


def engine_of(config: Config) -> Engine:
    """Return the configured engine; torch and vllm are imported for ``vllm`` only."""
    if config.rollout.engine == "scripted":
        from workers.rollout.scripted import ScriptedEngine

        return ScriptedEngine(config)
    os.environ.update(vllm_settings.environment(os.environ, vllm_settings.cores()))
    from workers.rollout.vllm_engine import VllmEngine

    return VllmEngine(config)


async def live(config: Config, worker_id: str, engine: Engine, stop: asyncio.Event | None = None) -> int:
    """Connect, load the first weights, and answer until told to stop (by signals, if no event is given)."""
    stop = stop or stop_on_signals()
    async with contextlib.AsyncExitStack() as open_parts:
        parts = await cancel_on_stop(stop, start(config, worker_id, engine, open_parts))
        if parts is not None:
            freeze_gc()
            log.info("serving", version=parts.switcher.own.version, engine=config.rollout.engine)
            await run_until_first_exit(
                parts.desk.serve(stop, config.run.drain_s),
                following=parts.follower.follow(),
                heartbeat=parts.switcher.beat_for_ever(),
                switching=parts.switcher.switch_for_ever(),
                commits=parts.intake.commit_for_ever(),
            )
            await parts.intake.commit()
    return 0


class Parts(msgspec.Struct, frozen=True):
    """What works together in this process."""

    desk: RequestServer
    follower: WeightWatcher
    switcher: WeightUpdater
    intake: RequestConsumer


async def start(config: Config, worker_id: str, engine: Engine, open_parts: contextlib.AsyncExitStack) -> Parts:
    """Return the worker's parts, serving; ``open_parts`` closes them, the last opened first."""
    publisher = await open_parts.enter_async_context(Publisher(config.bus, worker_id))
    follower = await open_parts.enter_async_context(WeightWatcher(config, worker_id, publisher))
    open_parts.push_async_callback(engine.stop)
    first = await start_engine(config, engine, follower)
    switcher = WeightUpdater(config, worker_id, engine, publisher, follower, first)
    await switcher.beat()
    replies = await publisher.partitions_of(actions.TOPIC)
    intake = await open_parts.enter_async_context(RequestConsumer(config, worker_id))
    desk = RequestServer(worker_id, engine, intake, publisher, replies, config.rollout.max_in_flight)
    return Parts(desk, follower, switcher, intake)


async def start_engine(config: Config, engine: Engine, follower: WeightWatcher) -> int:
    """Start the engine on the newest weights that load, and return their version."""
    while True:
        version = await follower.first()
        try:
            await engine.start(version)
        except LoadFault as fault:
            log.error("first weights not loaded", version=version.version, because=str(fault))
            await follower.newer_or(version, RETRY_S)
        else:
            return version.version
