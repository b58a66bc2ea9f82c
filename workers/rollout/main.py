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
from collections.abc import Awaitable, Coroutine
from typing import Any

import structlog

from dart_streams.bus.clients import Publisher
from dart_streams.config import Config
from dart_streams.telemetry import setup
from topics import actions
from workers.rollout import vllm_settings
from workers.rollout.desk import Desk
from workers.rollout.engine import Engine, LoadFault
from workers.rollout.follower import Follower, wait_until
from workers.rollout.intake import Intake
from workers.rollout.switcher import Switcher

log = structlog.get_logger()


class PartEnded(Exception):
    """A part of the worker that should go on for ever has ended."""


def run(config: Config, worker_id: str) -> int:
    """Be rollout worker ``worker_id`` until SIGTERM or SIGINT; return the exit code.

    Raises
    ------
    ServiceUnavailable
        If the broker or the database does not answer within its bound.
    """
    setup.start(config, worker_id)
    try:
        return asyncio.run(live(config, worker_id, engine_of(config)))
    finally:
        setup.stop()


def engine_of(config: Config) -> Engine:
    """Return the configured engine; torch and vllm are imported for ``vllm`` only."""
    if config.rollout.engine == "scripted":
        from workers.rollout.scripted import ScriptedEngine

        return ScriptedEngine(config)
    os.environ.update(vllm_settings.environment(os.environ, vllm_settings.cores()))
    from workers.rollout.vllm_engine import VllmEngine

    return VllmEngine(config)


async def live(config: Config, worker_id: str, engine: Engine) -> int:
    """Work until told to stop; what is under way then has ``run.drain_s`` to end."""
    stop, ready = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    work = asyncio.create_task(serve(config, worker_id, engine, stop, ready))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if ready.is_set():
        log.info("draining", bound_s=config.run.drain_s)
        await asyncio.wait({work}, timeout=config.run.drain_s)
    stopped.cancel()
    work.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await work
    return 0


async def serve(config: Config, worker_id: str, engine: Engine, stop: asyncio.Event, ready: asyncio.Event) -> None:
    """Connect, load the first weights, set ``ready``, and work until ``stop`` is set."""
    async with Publisher(config.bus, worker_id) as publisher, Follower(config, worker_id, publisher) as follower:
        following = asyncio.create_task(follower.follow())
        try:
            first = await start(config, engine, follower)
            switcher = Switcher(config, worker_id, engine, publisher, follower, first)
            await switcher.beat()
            replies = await publisher.partitions_of(actions.TOPIC)
            async with Intake(config, worker_id) as intake:
                desk = Desk(worker_id, engine, intake, publisher, replies, config.rollout.max_in_flight)
                ready.set()
                log.info("serving", version=first, engine=config.rollout.engine)
                await together(
                    desk.serve(stop),
                    following,
                    switcher.beat_for_ever(),
                    switcher.switch_for_ever(),
                    intake.commit_for_ever(),
                )
                await intake.commit()
        finally:
            following.cancel()
            await engine.stop()


async def start(config: Config, engine: Engine, follower: Follower) -> int:
    """Start the engine on the newest weights that load, and return their version."""
    while True:
        version = await follower.first()
        try:
            await engine.start(version)
        except LoadFault as fault:
            log.error(
                "first weights not loaded", version=version.version, why=str(fault), again_s=config.rollout.retry_s
            )
            await wait_until(follower.fresh(), config.rollout.retry_s)
        else:
            return version.version


async def together(work: Coroutine[Any, Any, None], *support: Awaitable[None]) -> None:
    """Run ``work`` to its end beside what supports it; the end of a supporting part, even a clean one, is an error.

    Raises
    ------
    PartEnded
        If a supporting part ended without an error of its own.
    """
    main = asyncio.create_task(work)
    parts = {asyncio.ensure_future(part) for part in support}
    try:
        done, _ = await asyncio.wait({main, *parts}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        if main not in done:
            raise PartEnded("a part of the worker that should go on for ever has ended")
    finally:
        for task in (main, *parts):
            task.cancel()
        await asyncio.gather(main, *parts, return_exceptions=True)
