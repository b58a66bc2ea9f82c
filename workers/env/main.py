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

import contextlib
from pathlib import Path

import structlog

from dart_streams import tasks
from dart_streams.bus.clients import Publisher
from dart_streams.config import Config
from dart_streams.store import AsyncStore, connect_async
from workers.env.backends import backend_of
from workers.env.episode_runner import EpisodeRunner
from workers.env.order_consumer import OrderConsumer
from workers.env.replies import Replies
from workers.env.slots import Slots
from workers.runtime import lifecycle

log = structlog.get_logger()


def run(config: Config, worker_id: str) -> int:
    """Be environment worker ``worker_id`` until SIGTERM or SIGINT; return the exit code."""
    return lifecycle.run(connect, config, worker_id)


async def connect(config: Config, worker_id: str, resources: contextlib.AsyncExitStack) -> lifecycle.Worker:
    """Connect to the broker, the store and the backend; return the worker, ready to play.

    Raises
    ------
    ConfigError
        If the task set cannot be used.
    ServiceUnavailable
        If the broker, the database or the browser does not answer within its bound.
    """
    task_set = tasks.load(Path(config.tasks.file))
    publisher = await resources.enter_async_context(Publisher(config.bus, worker_id))
    session = await connect_async(config.store)
    resources.callback(session.cluster.shutdown)
    store = AsyncStore(session, config.bus.run, config.store.blob_cache_mb, config.store.wait_s)
    backend = backend_of(config)
    resources.push_async_callback(backend.stop)
    await backend.start()
    replies = await resources.enter_async_context(Replies(config, worker_id, publisher))
    intake = await resources.enter_async_context(OrderConsumer(config, worker_id, publisher))
    slots = Slots(config, EpisodeRunner(config, worker_id, backend, store, publisher, replies), intake, task_set)
    slots.times.report()
    log.info("playing", slots=slots.count, backend=config.env.backend, tasks=len(task_set.train))
    return lifecycle.Worker(
        slots.serve, {"replies": replies.listen, "stall detector": replies.watch, "commits": intake.tend}
    )
