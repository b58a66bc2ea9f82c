"""The Faust application: its settings, and one table an agent."""

from typing import Any

import faust

from dart_streams.config import Config
from dart_streams.connection import auth
from dart_streams.curation.reducer import Agent
from topics import Topic
from workers.curator.changelogs import MOST_BYTES, SOURCES, application
from workers.curator.transport import Flow, Transport

FETCH_BYTES = 128 * 1024
"""What one fetch brings of a partition. The client serves what it has fetched of one before it turns to the next, so
with more, a flood of trajectories would keep the other agents waiting. A larger record still comes, alone."""
RAW: dict[str, Any] = {"key_type": bytes, "value_type": bytes, "key_serializer": "raw", "value_serializer": "raw"}
"""Faust acknowledges what it can't decode; so it decodes nothing, and the clerk does."""


def create(config: Config, worker_id: str) -> faust.App:
    """Return the application, not started. At least once: effects are idempotent, and exactly-once is known to hang.

    Its membership of the consumer group is static, so that a killed curator's successor of the same name takes over at
    once instead of waiting until the group misses the dead one.
    """
    folder = config.run.folder / "faust"
    folder.mkdir(parents=True, exist_ok=True)
    app = faust.App(
        application(config),
        **auth.faust(config.bus),
        datadir=str(folder),
        store="memory://",
        autodiscover=False,
        web_enabled=False,
        topic_allow_declare=False,
        topic_disable_leader=True,
        reply_create_topic=False,
        key_serializer="raw",
        value_serializer="raw",
        broker_commit_interval=0.5,
        broker_session_timeout=15.0,
        broker_heartbeat_interval=3.0,
        broker_max_poll_records=200,
        consumer_group_instance_id=worker_id,
        stream_buffer_maxsize=500,
        stream_recovery_delay=0.0,
        stream_wait_empty=False,
        producer_max_request_size=MOST_BYTES,
        producer_linger=0.0,
        consumer_max_fetch_size=FETCH_BYTES,
        cython_optimizations=True,
    )
    app.transport = Transport(app.conf.broker_consumer, app)
    app.flow_control = Flow()
    return app


def source(app: faust.App, config: Config, topics: tuple[Topic, ...]) -> Any:
    """Return the channel of an agent's input topics, as raw bytes."""
    return app.topic(*(config.bus.prefix + topic.name for topic in topics), **RAW)


def table(app: faust.App, agent: Agent) -> Any:
    """Return the table that keeps an agent's state."""
    follows = SOURCES[agent.name]
    return app.Table(agent.name, key_type=bytes, value_type=bytes, partitions=follows.partitions if follows else 1)
