"""The environment worker: plays the episodes that are ordered.

=============  ==================================================================================================
consumes       ``rollout-orders`` (group ``env``), ``actions`` (its own partition, without a group)
produces       ``observations``, ``action-requests``, ``rollout-orders.dlq``, ``actions.dlq``; screenshots (store)
waits for      orders, while slots are free; then the reply to each request, ``env.request_timeout_s`` at most
unblocked by   dispatch; the rollout workers
=============  ==================================================================================================

An order is committed when its episode has ended and the end is told; so the orders of a host that dies are delivered
to another one, and play there from their start, as new trajectories.
"""

import asyncio
import contextlib
from pathlib import Path

import structlog

from dart_streams import tasks
from dart_streams.bus.clients import Publisher
from dart_streams.config import Config
from dart_streams.store import AsyncStore, connect_async
from dart_streams.telemetry import setup
from workers.env.backends import backend_of
from workers.env.episode_runner import EpisodeRunner
from workers.env.order_consumer import OrderConsumer
from workers.env.replies import Replies
from workers.env.slots import Slots
from workers.runtime.lifecycle import cancel_on_stop, freeze_gc, run_until_first_exit, stop_on_signals

log = structlog.get_logger()


def run(config: Config, worker_id: str) -> int:
    """Be environment worker ``worker_id`` until SIGTERM or SIGINT; return the exit code.

    Raises
    ------
    ConfigError
        If the task set cannot be used.
    ServiceUnavailable
        If the broker, the database or the browser does not answer within its bound.
    """
    setup.start(config, worker_id)
    try:
        return asyncio.run(live(config, worker_id))
    finally:
        setup.stop()


async def live(config: Config, worker_id: str, stop: asyncio.Event | None = None) -> int:
    """Connect, play until told to stop (by signals, if no event is given), drain."""
    stop = stop or stop_on_signals()
    async with contextlib.AsyncExitStack() as open_parts:
        slots = await cancel_on_stop(stop, connect(config, worker_id, open_parts))
        if slots is None:
            return 0
        freeze_gc()
        log.info("playing", slots=slots.count, backend=config.env.backend, tasks=len(slots.tasks.train))
        await run_until_first_exit(
            slots.serve(stop),
            replies=slots.player.replies.listen(),
            stall_watch=slots.player.replies.watch(),
            commits=slots.intake.tend(),
        )
    return 0


async def connect(config: Config, worker_id: str, open_parts: contextlib.AsyncExitStack) -> Slots:
    """Return the slots with everything they need; ``open_parts`` closes it, the last opened first."""
    task_set = tasks.load(Path(config.tasks.file))
    publisher = await open_parts.enter_async_context(Publisher(config.bus, worker_id))
    session = await connect_async(config.store)
    open_parts.callback(session.cluster.shutdown)
    store = AsyncStore(session, config.bus.run, config.store.blob_cache_mb, config.store.wait_s)
    backend = backend_of(config)
    open_parts.push_async_callback(backend.stop)
    await backend.start()
    replies = await open_parts.enter_async_context(Replies(config, worker_id, publisher))
    intake = await open_parts.enter_async_context(OrderConsumer(config, worker_id, publisher))
    slots = Slots(config, EpisodeRunner(config, worker_id, backend, store, publisher, replies), intake, task_set)
    slots.times.report()
    return slots
