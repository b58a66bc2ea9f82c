"""The curator's Faust application, and its life: connect, bind the agents, recover their tables, work, drain.

``dart-streams worker curator`` runs it, and so does ``faust -A workers.curator.app worker``.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Coroutine, Mapping
from hashlib import blake2b
from typing import Any

import aiokafka.consumer.fetcher
import faust
import structlog
from mode.supervisors import ForfeitOneForOneSupervisor

from dart_streams.bus import compressed_batches
from dart_streams.bus.clients import Publisher, SendCoalescer
from dart_streams.bus.flush_barrier import FlushBarrier
from dart_streams.bus.lag import lag_reader
from dart_streams.bus.topic_watch import refuse_growth, watch_topics
from dart_streams.config import Config
from dart_streams.config import tasks as task_sets
from dart_streams.connection import auth
from dart_streams.curation.agents import bind_agents
from dart_streams.curation.reducer import Agent
from dart_streams.disk_room import make_private
from dart_streams.errors import ConfigError, UserError
from topics import trajectories
from workers.curator import agents
from workers.curator.changelogs import MAX_RECORD_BYTES, SOURCES, application_id, changelog_of
from workers.curator.durable_agent import MAX_BATCH, DurableAgent
from workers.curator.journal_writer import Changelog, read_from
from workers.curator.order_audit import OrderAudit
from workers.curator.recovery_watch import watch_recovery
from workers.curator.transport import Flow, Transport
from workers.runtime import lifecycle

BATCH_INTERVAL_S = 0.2
"""Minimum interval between batches of finished rollouts."""
LATER_BATCH_INTERVAL_S = 0.05
"""Minimum interval of later agents. Their input arrives in bursts already, and a finished rollout passes three agents
before it is replaced."""
STALL_CHECK_S = 1.0
BATCH_BYTES = 512 * 1024
"""Maximum produce batch of a partition, below the topics' largest record."""
FETCH_BYTES = 128 * 1024
"""Maximum fetch of a partition. The client delivers one partition's fetch before the next, so a flood of trajectories
would delay the other agents. A larger record still arrives alone."""

COMMIT_INTERVAL_S = 3.0
"""Interval between commits of input offsets. Records read again after a crash are recognized by offset."""

log = structlog.get_logger()


async def connect(config: Config, worker_id: str, resources: contextlib.AsyncExitStack) -> lifecycle.Worker:
    """Start the application; return it as a worker. Raises as :meth:`DataManager.on_first_start` does."""
    app = DataManager(config, worker_id)
    resources.push_async_callback(app.end)
    await lifecycle.run_until_first_exit(app.start(), agents=app.run_until_failure())
    return lifecycle.Worker(
        asyncio.Event.wait, {"Faust": app.wait_until_stopped, "agents": app.run_until_failure}, app.find_idle_agents
    )


class DataManager(faust.App):
    """The agents' Faust application; delivery is at least once, since effects are idempotent.

    Faust acknowledges undecodable records, so it decodes nothing. Group membership is static: the successor of a killed
    curator takes over without a session timeout.
    """

    def __init__(self, config: Config, worker_id: str) -> None:
        """Bind the agents; raise ConfigError if no task is to be trained on."""
        compressed_batches.limit_fetches(aiokafka.consumer.fetcher)
        logging.getLogger("faust.agents.actor").addFilter(is_unexpected)
        logging.getLogger("mode.timers").setLevel(logging.ERROR)  # It warns of every commit that is a little late.
        super().__init__(
            application_id(config),
            **auth.faust_arguments(config.bus),
            datadir=str(config.run.folder / "faust"),
            store="memory://",
            web_enabled=False,
            topic_allow_declare=False,
            topic_disable_leader=True,
            value_serializer="raw",
            broker_commit_interval=COMMIT_INTERVAL_S,
            broker_session_timeout=15.0,
            broker_max_poll_records=200,
            stream_buffer_maxsize=MAX_BATCH,
            stream_wait_empty=False,
            producer_max_request_size=MAX_RECORD_BYTES,
            consumer_max_fetch_size=FETCH_BYTES,
            cython_optimizations=True,
        )
        self.transport = Transport(self.conf.broker_consumer, self)
        self.flow_control = Flow()
        self.boot_strategy.enable_web = False  # ``faust worker`` enables it by default.
        self.config = config
        self.worker_id = worker_id
        self.failed = asyncio.Event()
        self.failure: BaseException | None = None
        tasks = task_sets.tasks_of(config)
        if not tasks.train and not config.tasks.proposals:
            raise ConfigError(f"{config.tasks.file}: no task to train on: give a page some train_seeds")
        head = SendCoalescer(BATCH_INTERVAL_S)
        self.durable = [
            self.bind(reducer, head if trajectories.TOPIC in reducer.inputs else SendCoalescer(LATER_BATCH_INTERVAL_S))
            for reducer in bind_agents(config, tasks)
        ]

    def bind(self, reducer: Agent, pace: SendCoalescer) -> DurableAgent:
        """Bind one agent to its topics, table and reducer."""
        source, prefix = SOURCES.get(reducer.name), self.config.bus.prefix
        name = changelog_of(self.config, reducer.name)
        changelog = Changelog(name, self.worker_id, functools.partial(read_from, self.config.bus))
        changelog.table = self.Table(
            reducer.name,
            key_type=bytes,
            value_type=bytes,
            partitions=source.partitions if source else 1,
            on_changelog_event=changelog.note_recovered,
        )
        stall_s = self.config.telemetry.stall_s
        durable = DurableAgent(reducer, changelog, pace, stall_s, prefix, one_state=source is None)
        names = [prefix + topic.name for topic in reducer.inputs]
        channel = self.topic(*names, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw")
        body = functools.partial(agents.BODIES[reducer.name], durable)
        supervisor = ForfeitOneForOneSupervisor  # The default restarts an agent; the crashing one breaks Faust's stop.
        self.agent(channel, name=reducer.name, concurrency=1, supervisor_strategy=supervisor)(body)
        return durable

    async def on_first_start(self) -> None:
        """Check the topics and connect the agents before Faust joins the group.

        Raises ServiceUnavailable if the broker or a topic is missing for ``bus.wait_s``; ConfigError if an input of
        dispatch has several partitions; TopicGrown if an input was grown.
        """
        make_private(self.conf.datadir)
        await super().on_first_start()
        self.publisher = await self.add_async_context(Publisher(self.config.bus, self.worker_id, BATCH_BYTES))
        reducers = [durable.reducer for durable in self.durable]
        for reducer in reducers:
            for topic in reducer.inputs:
                partitions = await self.publisher.partitions_of(topic)
                if SOURCES.get(reducer.name) is None and partitions > 1:
                    name = self.config.bus.prefix + topic.name
                    raise ConfigError(f"topic {name} has {partitions} partitions: {reducer.name} needs it to have one")
        await refuse_grown_inputs(self.config, self.publisher)
        self.used = list({topic.name: topic for one in reducers for topic in (*one.inputs, *one.outputs)}.values())
        self.topic_ids = await self.publisher.topic_ids(topic.name for topic in self.used)
        self.conf.consumer_group_instance_id = member_id(self.worker_id, self.topic_ids)
        for durable in self.durable:
            durable.connect(self.publisher, self.topic_ids)
        self.on_partitions_assigned.connect(self.note_assigned)
        self.watch("recovery", watch_recovery(self, lambda: sum(one.changelog.recovered for one in self.durable)))

    async def on_started(self) -> None:
        """Recover the tables, then begin to watch."""
        await super().on_started()
        offsets = await self.add_async_context(lag_reader(self.config.bus))
        barrier = FlushBarrier(offsets, log, self.config.telemetry.stall_s)
        fixed = [topic for topic in SOURCES.values() if topic is not None]
        agents = {durable.reducer.name: durable for durable in self.durable}
        self.watch("order audit", OrderAudit(agents, self.publisher, barrier).run())
        self.watch("topics", watch_topics(self.publisher, self.used, fixed, self.topic_ids))
        for durable in self.durable:
            self.watch(f"{durable.reducer.name} owner", durable.keep_watch())

    async def end(self) -> None:
        """Stop; raise the failure of the drain, if there is one."""
        await self.stop()
        if self.failure and not self.failed.is_set():
            raise self.failure

    async def on_stop(self) -> None:
        """Drain unless an agent has failed, then stop all parts: an error here would leave Faust's threads running."""
        if not (self.failed.is_set() or self.crashed):
            ended = (await asyncio.gather(self.drain(), return_exceptions=True))[0]
            if isinstance(ended, Exception):
                log.warning("not drained", reason=str(ended), effect="what is not acknowledged is read again")
                self.failure = ended
        await super().on_stop()

    async def drain(self) -> None:
        """Let each agent finish its batch and write a snapshot; raise OwnershipLost as :meth:`DurableAgent.drain`."""
        drain_s = self.config.run.drain_s / 2
        log.info("draining", bound_s=drain_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain_s):
                for durable in self.durable:
                    await durable.drain()

    @faust.Service.timer(STALL_CHECK_S)
    async def check_stalls(self) -> None:
        """Log inputs that have been silent for too long."""
        for durable in self.durable:
            durable.stalls.check()

    async def note_assigned(self, *_: object, **__: object) -> None:
        """Let each agent look for a replacement."""
        for durable in self.durable:
            durable.assigned.set()

    def watch(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside the agents; its end, even without an error, ends the application."""

        async def run() -> None:
            ended = (await asyncio.gather(work, return_exceptions=True))[0]
            if not isinstance(ended, asyncio.CancelledError):
                await self.fail(ended or lifecycle.UnexpectedExit(f"background task exited: {name}"))

        self.add_future(run())

    async def _on_agent_error(self, agent: object, exc: BaseException) -> None:
        await self.fail(exc)

    async def fail(self, failure: BaseException) -> None:
        """End the application because of a failure, which :meth:`run_until_failure` raises."""
        if self.in_worker:
            await self.crash(failure)
        self.failure = self.failure or failure
        self.failed.set()

    async def run_until_failure(self) -> None:
        """Return never; raise what ends the application."""
        await self.failed.wait()
        assert self.failure is not None
        raise self.failure

    def find_idle_agents(self) -> str:
        """Return which agents lack their inputs or recover state, empty if none does."""
        idle = [durable.reducer.name for durable in self.durable if not durable.settled_partitions()]
        return f"agents without all of their inputs, or in recovery: {', '.join(idle)}" if idle else ""


def is_unexpected(record: logging.LogRecord) -> bool:
    """Return whether a log record has no error for the user, which the end of the process prints once."""
    return not (record.exc_info and isinstance(record.exc_info[1], UserError))


async def refuse_grown_inputs(config: Config, publisher: Publisher) -> None:
    """Raise TopicGrown if an input has more partitions than its agent's changelog had at the run's start.

    The rollouts of a group could then reach another state than before.
    """
    sources = {f"curator-{agent}-changelog": topic.name for agent, topic in SOURCES.items() if topic is not None}
    counts = await publisher.partition_counts([*sources, *sources.values()])
    for changelog, source in sources.items():
        if changelog in counts and source in counts:
            refuse_growth(config.bus, {source: counts[changelog]}, counts)


def member_id(worker_id: str, topic_ids: Mapping[str, str]) -> str:
    """Return a curator's static member id, which changes with recreated topics.

    A returning static member gets its previous assignment, even one made while the topic was missing.
    """
    return f"{worker_id}-{blake2b(repr(sorted(topic_ids.items())).encode(), digest_size=4).hexdigest()}"
