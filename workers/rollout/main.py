"""The rollout worker: answers action requests with the newest weights.

=============  ==================================================================================================
consumes       ``action-requests`` (group ``rollout``), ``weights`` and ``weights-serving`` (whole, without a group)
produces       ``actions`` (to the partition that the request names), ``weights-serving``, ``action-requests.dlq``
waits for      a first weight version; then requests, newer weights, and its turn in the rolling update. With fixed
               weights: requests, after the version that they are compared with if the run trains
unblocked by   the trainer; environment workers; the other rollout workers' records, or their missing heartbeats
=============  ==================================================================================================
"""

import contextlib
import functools
import os
import signal
import sys
import traceback
from typing import Any

import structlog

from dart_streams.bus.clients import Publisher
from dart_streams.bus.topic_watch import watch_topics
from dart_streams.config import Config
from dart_streams.telemetry import names
from topics import action_requests, actions
from topics.weights import WeightVersion
from workers.rollout import vllm_settings
from workers.rollout.engine import Engine, EngineDead, LoadFault
from workers.rollout.request_server import RequestServer
from workers.rollout.weight_updater import RETRY_INTERVAL_S, WATCHED, FirstVersion, WeightUpdater, WeightWatcher
from workers.runtime import lifecycle
from workers.runtime.ordered_consumer import OrderedConsumer

GROUP = "rollout"
FIXED = WeightVersion(model_id="fixed", version=0, uri="", sha256="", train_step=0, epoch=0, groups_consumed=0)
"""Version of an engine whose weights follow no trainer."""

log = structlog.get_logger()


def run(config: Config, worker_id: str) -> int:
    """Run rollout worker ``worker_id`` until SIGTERM or SIGINT; return the exit code."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))  # Imports take seconds before the event loop starts.
    try:
        code = lifecycle.run(functools.partial(connect, engine=engine_of(config)), config, worker_id)
    except EngineDead:
        traceback.print_exc()
        code = 1
    if config.rollout.engine == "vllm":
        # vLLM and torch take seconds to exit, abort when interrupted, and may hang.
        sys.stderr.flush()
        os._exit(code)
    return code


def engine_of(config: Config) -> Engine:
    """Return the configured engine; torch and vllm are imported for ``vllm`` only."""
    if config.rollout.engine == "scripted":
        from workers.rollout.scripted import ScriptedEngine

        return ScriptedEngine(config)
    if config.rollout.engine == "openai":
        from workers.rollout.openai_engine import OpenaiEngine

        return OpenaiEngine(config)
    ranks = config.rollout.vllm.tensor_parallel
    os.environ.update(vllm_settings.engine_environment(os.environ, ranks))
    from workers.rollout.vllm_engine import VllmEngine

    return VllmEngine(config)


async def connect(
    config: Config, worker_id: str, resources: contextlib.AsyncExitStack, *, engine: Engine
) -> lifecycle.Worker:
    """Connect, start the engine on the newest weights, join the group; raise ServiceUnavailable on a timeout."""
    publisher = await resources.enter_async_context(Publisher(config.bus, worker_id))
    watcher = await resources.enter_async_context(WeightWatcher(config, worker_id, publisher))
    resources.push_async_callback(engine.stop)
    if config.rollout.fixed_weights:
        compared = config.rollout.openai.trainable and config.run.trains
        await engine.start(await watcher.first_version() if compared else FIXED)
        first = FirstVersion(FIXED.version)
    else:
        first = await start_engine(engine, watcher)
    updater = WeightUpdater(config, worker_id, engine, publisher, watcher, first)
    await updater.send_heartbeat()
    reply_partitions = await publisher.partitions_of(actions.TOPIC)
    requests = OrderedConsumer(config, worker_id, publisher, action_requests.TOPIC, "request_id", GROUP)
    await resources.enter_async_context(requests)
    model = {
        names.ATTR_GEN_OPERATION: "chat",
        names.ATTR_GEN_PROVIDER: config.rollout.engine,
        names.ATTR_GEN_MODEL: config.policy.model_id,
    }
    slots = config.rollout.max_in_flight
    server = RequestServer(worker_id, engine, requests, publisher, reply_partitions, slots, model)
    log.info("serving", version=first.version, engine=config.rollout.engine)
    background: dict[str, Any] = {
        "heartbeat": updater.send_heartbeats,
        "commits": requests.commit_periodically,
        "request queue": server.watch_queue,
        "topics": functools.partial(watch_topics, publisher, (action_requests.TOPIC, actions.TOPIC, *WATCHED)),
    }
    if not config.rollout.fixed_weights:
        background |= {"weight watcher": watcher.watch, "weight updater": updater.update}
    return lifecycle.Worker(functools.partial(requests.serve, server.handle, slots), background, requests.find_lack)


async def start_engine(engine: Engine, watcher: WeightWatcher) -> FirstVersion:
    """Start the engine on the newest weights that load, and report newer ones that failed; wait if none loads."""
    while True:
        version = await watcher.first_version()
        if (fault := await load_failure(engine, version)) is None:
            return FirstVersion(version.version)
        for older in watcher.before(version):
            if await load_failure(engine, older) is None:
                return FirstVersion(older.version, version.version, fault)
        await watcher.wait_for_newer(version, RETRY_INTERVAL_S)


async def load_failure(engine: Engine, version: WeightVersion) -> str | None:
    """Start the engine on ``version``; return the load error, or None."""
    try:
        await engine.start(version)
    except LoadFault as fault:
        log.error("first weights not loaded", version=version.version, kind=version.kind, reason=str(fault))
        return str(fault)
    return None
