"""The curator: Faust agents, chained by topics, each with one table and one reducer.

==========  ================================  ===================  ===============================================
agent       consumes                          produces             waits for; unblocked by
==========  ================================  ===================  ===============================================
difficulty  ``trajectories``                  ``task-difficulty``  finished rollouts; the recorder
budget      ``task-difficulty``               ``rollout-budgets``  finished rollouts; the difficulty agent
groups      ``trajectories``                  ``curated``          a group's last rollout; the recorder
dispatch    ``rollout-budgets``, ``curated``  ``rollout-orders``   the first weights, then finishes and room within the
            and ``weights``                                        staleness bound; budget, the trainer
==========  ================================  ===================  ===============================================

With ``tasks.proposals`` there is one more, which orders a check of each proposed task, and dispatch reads its verdicts:

==========  ================================  ===================  ===============================================
proposals   ``tasks`` and ``trajectories``    ``task-verdicts``,   proposals, then the ends of their checks; makers of
                                              ``rollout-orders``   tasks, the recorder
==========  ================================  ===================  ===============================================

With ``feedback.enabled`` there is one that trains on what people say:

==========  ================================  ===================  ===============================================
feedback    ``feedback`` and                  ``curated``          feedback, and the end of the trajectories that it
            ``trajectories``                                       is about; people, the recorder
==========  ================================  ===================  ===============================================

All of them produce ``curation-log``, and ``<input>.dlq`` for records that do not decode or cannot be applied.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Mapping, Sequence
from hashlib import blake2b

import aiokafka.consumer.fetcher
import faust
import structlog
from mode.supervisors import CrashingSupervisor

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
from dart_streams.errors import ConfigError
from topics import trajectories
from workers.curator.agent_runner import BATCH_INTERVAL_S, LATER_BATCH_INTERVAL_S, AgentRunner
from workers.curator.changelogs import MAX_RECORD_BYTES, SOURCES, application_id, changelog_of
from workers.curator.input_queue import enqueue_records
from workers.curator.journal_writer import Changelog, read_from
from workers.curator.order_audit import OrderAudit
from workers.curator.recovery_watch import watch_recovery
from workers.curator.transport import Flow, Transport
from workers.runtime import lifecycle

BATCH_BYTES = 512 * 1024
"""Maximum produce batch of a partition, below the topics' largest record."""
FETCH_BYTES = 128 * 1024
"""Maximum fetch of a partition. The client delivers one partition's fetch before the next, so a flood of trajectories
would delay the other agents. A larger record still arrives alone."""

COMMIT_INTERVAL_S = 3.0
"""Interval between commits of input offsets. Records read again after a crash are recognized by offset."""

log = structlog.get_logger()


async def connect(config: Config, worker_id: str, resources: contextlib.AsyncExitStack) -> lifecycle.Worker:
    """Check tasks and topics, bind the agents and start Faust; return the worker.

    Raises ServiceUnavailable if the broker or a topic is missing for ``bus.wait_s``; ConfigError if no task is to be
    trained on, or an input of dispatch has several partitions; TopicGrown if an input was grown.
    """
    logging.getLogger("mode.timers").setLevel(logging.ERROR)  # it warns of every commit that is a little late
    tasks = task_sets.tasks_of(config)
    if not tasks.train and not config.tasks.proposals:
        raise ConfigError(f"{config.tasks.file}: no task to train on: give a page some train_seeds")
    publisher = await resources.enter_async_context(Publisher(config.bus, worker_id, BATCH_BYTES))
    every = bind_agents(config, tasks)
    for agent in every:
        for topic in agent.inputs:
            partitions = await publisher.partitions_of(topic)
            if SOURCES.get(agent.name) is None and partitions > 1:
                name = config.bus.prefix + topic.name
                raise ConfigError(f"topic {name} has {partitions} partitions: {agent.name} needs it to have one")
    await refuse_grown_inputs(config, publisher)
    used = list({topic.name: topic for agent in every for topic in (*agent.inputs, *agent.outputs)}.values())
    ids = await publisher.topic_ids(topic.name for topic in used)
    app = create_app(config, member_id(worker_id, ids))
    runners, head = [], SendCoalescer(BATCH_INTERVAL_S)
    for agent in every:
        pace = head if trajectories.TOPIC in agent.inputs else SendCoalescer(LATER_BATCH_INTERVAL_S)
        runners.append(bind(app, config, agent, publisher, pace, worker_id))
        runners[-1].topic_ids = ids

    async def note_assigned(*_: object, **__: object) -> None:
        for runner in runners:
            runner.assigned.set()

    app.on_partitions_assigned.connect(note_assigned)
    recovery = functools.partial(watch_recovery, app, lambda: sum(runner.changelog.recovered for runner in runners))
    resources.push_async_callback(app.stop)
    await lifecycle.run_until_first_exit(app.start(), recovery=recovery())
    offsets = await resources.enter_async_context(lag_reader(config.bus))
    audit = OrderAudit(runners[-1], publisher, FlushBarrier(offsets, log, config.telemetry.stall_s))
    fixed = [topic for topic in SOURCES.values() if topic is not None]
    return lifecycle.Worker(
        functools.partial(serve, runners, config.run.drain_s / 2),
        {
            "Faust": app.wait_until_stopped,
            "recovery": recovery,
            "order audit": audit.run,
            "topics": functools.partial(watch_topics, publisher, used, fixed, ids),
            **{f"{runner.agent.name} agent": runner.run for runner in runners},
            **{f"{runner.agent.name} owner": runner.keep_watch for runner in runners},
        },
        functools.partial(find_idle_agents, runners),
    )


async def serve(runners: Sequence[AgentRunner], drain_s: float, stop: asyncio.Event) -> None:
    """Wait for ``stop`` while the agents run; then let each finish its batch and write a snapshot."""
    await stop.wait()
    log.info("draining", bound_s=drain_s)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(drain_s):
            for runner in runners:
                await runner.drain()


def find_idle_agents(runners: Sequence[AgentRunner]) -> str:
    """Return which agents lack their inputs or recover state, empty if none does."""
    idle = [runner.agent.name for runner in runners if not runner.is_settled()]
    return f"agents without all of their inputs, or in recovery: {', '.join(idle)}" if idle else ""


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


def create_app(config: Config, instance_id: str) -> faust.App:
    """Return the unstarted Faust application; delivery is at least once, since effects are idempotent.

    Faust acknowledges undecodable records, so it decodes nothing. Group membership is static: the successor of a killed
    curator takes over without a session timeout.
    """
    compressed_batches.limit_fetches(aiokafka.consumer.fetcher)
    folder = config.run.folder / "faust"
    folder.mkdir(parents=True, exist_ok=True)
    app = faust.App(
        application_id(config),
        **auth.faust_arguments(config.bus),
        datadir=str(folder),
        store="memory://",
        web_enabled=False,
        topic_allow_declare=False,
        topic_disable_leader=True,
        value_serializer="raw",
        broker_commit_interval=COMMIT_INTERVAL_S,
        broker_session_timeout=15.0,
        broker_max_poll_records=200,
        consumer_group_instance_id=instance_id,
        stream_buffer_maxsize=500,
        stream_wait_empty=False,
        producer_max_request_size=MAX_RECORD_BYTES,
        consumer_max_fetch_size=FETCH_BYTES,
        cython_optimizations=True,
    )
    app.transport = Transport(app.conf.broker_consumer, app)
    app.flow_control = Flow()
    return app


def bind(
    app: faust.App, config: Config, agent: Agent, publisher: Publisher, pace: SendCoalescer, worker_id: str
) -> AgentRunner:
    """Bind one agent to its topics and table; return the runner that receives its records."""
    source = SOURCES.get(agent.name)
    name = changelog_of(config, agent.name)
    changelog = Changelog(name, worker_id, functools.partial(read_from, config.bus))
    changelog.table = app.Table(
        agent.name,
        key_type=bytes,
        value_type=bytes,
        partitions=source.partitions if source else 1,
        on_changelog_event=changelog.note_recovered,
    )
    runner = AgentRunner(agent, changelog, publisher, pace, config.telemetry.stall_s, one_state=source is None)
    names = [config.bus.prefix + topic.name for topic in agent.inputs]
    channel = app.topic(*names, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw")
    app.agent(channel, name=agent.name, concurrency=1, supervisor_strategy=CrashingSupervisor)(
        functools.partial(enqueue_records, runner.queue)
    )
    return runner
