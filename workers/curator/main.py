"""The curator: four Faust agents, chained by topics, each with one table and one reducer.

==========  ================================  ===================  ===============================================
agent       consumes                          produces             waits for; unblocked by
==========  ================================  ===================  ===============================================
difficulty  ``trajectories``                  ``task-difficulty``  finished rollouts; the recorder
budget      ``task-difficulty``               ``rollout-budgets``  finished rollouts; the difficulty agent
groups      ``trajectories``                  ``curated``          a group's last rollout; the recorder
dispatch    ``rollout-budgets``, ``curated``  ``rollout-orders``   the first weights, then finishes and room within the
            and ``weights``                                        staleness bound; budget, the trainer
==========  ================================  ===================  ===============================================

All of them produce ``curation-log``, and ``<input>.dlq`` for what does not decode or cannot be applied.
"""

import asyncio
import logging
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog
from mode.supervisors import CrashingSupervisor

from dart_streams import tasks as task_sets
from dart_streams.bus.clients import Publisher
from dart_streams.config import Config
from dart_streams.curation.agents import agents
from dart_streams.curation.reducer import Agent
from dart_streams.errors import ConfigError
from dart_streams.telemetry import setup
from topics import Topic
from workers.curator import application
from workers.curator.agent_runner import AgentRunner
from workers.curator.changelogs import SOURCES
from workers.runtime.lifecycle import freeze_gc

BATCH_BYTES = 512 * 1024
"""What one request brings of a partition: less than the topics' largest record."""

log = structlog.get_logger()


class PartEnded(Exception):
    """A part of the curator that should go on for ever has ended."""


def run(config: Config, worker_id: str) -> int:
    """Be the curator until SIGTERM or SIGINT; return the exit code.

    Raises
    ------
    ServiceUnavailable
        If the broker does not answer, or lacks a topic, within ``bus.wait_s``.
    ConfigError
        If the task set has no task to train on.
    """
    setup.start(config, worker_id)
    logging.getLogger("mode.timers").setLevel(logging.ERROR)  # or it tells of each commit that took a little longer
    try:
        return asyncio.run(until_signal(config, worker_id))
    finally:
        setup.stop()


async def until_signal(config: Config, worker_id: str) -> int:
    """Live until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return await live(config, worker_id, stop)


async def live(config: Config, worker_id: str, stop: asyncio.Event) -> int:
    """Connect, apply what comes until ``stop`` is set, and leave snapshots."""
    tasks = task_sets.load(Path(config.tasks.file))
    if not tasks.train:
        raise ConfigError(f"{config.tasks.file}: no task to train on: give a page some train_seeds")
    async with Publisher(config.bus, worker_id, BATCH_BYTES) as publisher:
        app = application.create(config, worker_id)
        clerks = []
        for agent in agents(config, tasks):
            await check_topics(config, publisher, agent.inputs, one_state=SOURCES[agent.name] is None)
            clerks.append(bind(app, config, agent, publisher))
        await app.start()
        freeze_gc()
        try:
            await serve(app, clerks, stop, config.run.drain_s)
        finally:
            await app.stop()
    return 0


async def check_topics(config: Config, publisher: Publisher, inputs: Sequence[Topic], *, one_state: bool) -> None:
    """Wait for an agent's topics; refuse several partitions where one agent has to see everything.

    Raises
    ------
    ServiceUnavailable
        If the broker lacks a topic.
    ConfigError
        If dispatch's inputs have several partitions: no single process would know what is under way.
    """
    for topic in inputs:
        partitions = await publisher.partitions_of(topic)
        if one_state and partitions > 1:
            raise ConfigError(
                f"topic {config.bus.prefix}{topic.name} has {partitions} partitions: dispatch needs it to have one"
            )


def bind(app: Any, config: Config, agent: Agent, publisher: Publisher) -> AgentRunner:
    """Bind one agent's clerk to its topics and its table."""
    one_state = SOURCES[agent.name] is None
    table = application.table(app, agent)
    clerk = AgentRunner(agent, table, publisher, config.telemetry.stall_s, one_state=one_state)
    channel = application.source(app, config, agent.inputs)
    app.agent(channel, name=agent.name, concurrency=1, supervisor_strategy=CrashingSupervisor)(clerk.gather)
    table.on_recover(clerk.recovered)
    return clerk


async def serve(app: Any, clerks: Sequence[AgentRunner], stop: asyncio.Event, drain_s: float) -> None:
    """Settle what the agents gather until ``stop`` is set, then finish the batches under way.

    Raises
    ------
    PartEnded
        If Faust or a clerk has ended by itself.
    """
    settling = [asyncio.create_task(clerk.settle_for_ever(stop)) for clerk in clerks]
    faust_ended = asyncio.create_task(app.wait_until_stopped())
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({*settling, faust_ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
        for task in settling:
            if task.done():
                task.result()
        if not stop.is_set():
            raise PartEnded("Faust has ended by itself; its log says why")
        log.info("draining", bound_s=drain_s)
        await asyncio.wait(settling, timeout=drain_s / 2)
    finally:
        for task in (*settling, faust_ended, stopped):
            task.cancel()
        await asyncio.gather(*settling, faust_ended, stopped, return_exceptions=True)
