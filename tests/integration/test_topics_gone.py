"""Topics that are deleted or grown under running workers: each is named, with advice, and no worker waits for ever."""

import asyncio
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from console.launch import topic_identity
from console.launch.topic_identity import LogGone
from console.monitor import main as monitor
from dart_streams.bus import admin, clients, sync_clients, topic_watch
from dart_streams.bus.clients import Publisher
from dart_streams.bus.topic_ids import recreated_topics
from dart_streams.bus.topic_watch import TopicGrown, TopicRecreated
from dart_streams.config import Config
from dart_streams.errors import ServiceUnavailable
from tests import events
from tests.faults.outsiders import topic_made_anew
from tests.task_files import write_tasks
from tests.topic_reader import add_partitions, delete_topics
from topics import curated, rollout_orders, weights
from workers.curator import main as curator
from workers.curator.changelogs import changelog_topics
from workers.env import main as env
from workers.recorder import main as recorder
from workers.rollout import main as rollout
from workers.rollout.scripted import ScriptedEngine
from workers.runtime.lifecycle import Connect, run_until_stopped
from workers.runtime.ordered_consumer import Delivery, OrderedConsumer

BOUND_S = 120.0
make_again = functools.partial(topic_made_anew, keep_grown=False)


@pytest.fixture
def config(services: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setattr(topic_watch, "CHECK_INTERVAL_S", 0.3)
    config = services.config(
        env={"backend": "simulated"}, rollout={"engine": "scripted"}, tasks=write_tasks(tmp_path, "box")
    )
    admin.apply_all(config.bus, changelog_topics(config))
    return config


def connect_of(kind: str, config: Config) -> Connect:
    if kind == "rollout":
        return functools.partial(rollout.connect, engine=ScriptedEngine(config))
    return {"env": env, "recorder": recorder, "curator": curator, "monitor": monitor}[kind].connect


async def ended(config: Config, kind: str, change: Callable[[Any], Any]) -> None:
    """Run a worker, change the broker's topics once it runs, and wait for its end."""
    begun = asyncio.Event()

    async def connected(*arguments: Any) -> Any:
        worker = await connect_of(kind, config)(*arguments)
        begun.set()
        return worker

    def change_topics() -> None:
        with admin.connect(config.bus) as client:
            change(client)

    working = asyncio.create_task(run_until_stopped(connected, config, f"{kind}-0", asyncio.Event()))
    try:
        async with asyncio.timeout(BOUND_S):
            await asyncio.wait({working, asyncio.create_task(begun.wait())}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.to_thread(change_topics)
            await working
    finally:
        working.cancel()


@pytest.mark.parametrize(
    ("kind", "topic"),
    [
        ("env", "action-requests"),
        ("env", "actions"),
        ("rollout", "action-requests"),
        ("rollout", "weights"),
        ("recorder", "observations"),
        ("curator", "curated"),
        ("monitor", "trajectories"),
    ],
)
async def test_a_worker_whose_topic_is_deleted_names_it_and_says_what_to_do(config: Config, kind: str, topic: str):
    async with Publisher(config.bus, "test") as publisher:
        await publisher.publish(weights.TOPIC, events.weight_version())
    name = config.bus.prefix + topic
    with pytest.raises(ServiceUnavailable, match=rf"topic {name} is gone.*topics apply"):
        await ended(config, kind, lambda client: client.delete_topics([name]))


@pytest.mark.parametrize(
    ("kind", "topic"), [("env", "rollout-orders"), ("recorder", "observations"), ("curator", "trajectories")]
)
async def test_a_worker_whose_topic_is_made_anew_ends(config: Config, kind: str, topic: str):
    with pytest.raises((TopicRecreated, ServiceUnavailable), match=rf"{topic} (was deleted and created again|is gone)"):
        await ended(config, kind, lambda _: make_again(config.bus, topic))


async def test_both_clients_read_the_same_ids_and_a_topic_made_anew_has_another(config: Config):
    names = [topic.TOPIC.name for topic in (curated, weights, rollout_orders)]
    async with Publisher(config.bus, "test") as publisher:
        before = await publisher.topic_ids([*names, "nothing"])
        assert before.keys() == set(names)
        assert before == {name: known for name, known in topic_identity.read(config.bus).items() if name in names}
        await asyncio.to_thread(make_again, config.bus, "weights")
        assert recreated_topics(before, await publisher.topic_ids(names)) == ["weights"]


async def test_a_resumed_run_names_new_topics_and_is_refused_without_its_orders(config: Config):
    known = topic_identity.read(config.bus)
    assert topic_identity.missing_topics(config.bus, known, "run-1") == []
    make_again(config.bus, "trajectories")
    [line] = topic_identity.missing_topics(config.bus, known, "run-1")
    assert line.startswith(f"topic {config.bus.prefix}trajectories was deleted since")
    make_again(config.bus, "rollout-orders")
    with pytest.raises(LogGone, match=r"run run-1 can't be resumed: topic \S+rollout-orders was deleted.*2 of its"):
        topic_identity.missing_topics(config.bus, known, "run-1")
    async with Publisher(config.bus, "test") as publisher:
        await publisher.publish(rollout_orders.TOPIC, events.rollout_order("of a process that went on"))
    assert len(topic_identity.missing_topics(config.bus, known, "run-1")) == 2
    with admin.connect(config.bus) as client:
        delete_topics(client, [config.bus.prefix + name for name in known])
    with pytest.raises(LogGone, match=rf"{len(known)} of its {len(known)} topics are gone"):
        topic_identity.missing_topics(config.bus, known, "run-1")
    assert topic_identity.missing_topics(config.bus, {}, "run-1") == [], "a new run, or one of an older release"


async def test_a_topic_made_again_with_fewer_partitions_is_read_on(config: Config, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(clients, "COMMIT_TIMEOUT_S", 0.5)
    topic, made_again, took = rollout_orders.TOPIC, asyncio.Event(), asyncio.Queue[str]()
    name, last = config.bus.prefix + topic.name, 2 * topic.partitions - 1

    async def handle(_: int, delivery: Delivery) -> None:
        await took.put(delivery.event.order_id)
        await made_again.wait()

    with admin.connect(config.bus) as client:
        add_partitions(client, last + 1, name)
    async with (
        asyncio.timeout(BOUND_S),
        Publisher(config.bus, "test") as publisher,
        OrderedConsumer(config, "env-0", publisher, topic, "order_id", "env") as member,
        asyncio.TaskGroup() as tasks,
    ):
        working = [
            tasks.create_task(member.serve(handle, 1, asyncio.Event())),
            tasks.create_task(member.commit_periodically()),
        ]
        await publisher.publish(topic, events.rollout_order("before"), partition=last)
        assert await took.get() == "before"
        await asyncio.to_thread(make_again, config.bus, topic.name)
        made_again.set()  # Only now it is finished: its offset can't be committed any more.
        async with Publisher(config.bus, "new") as new:
            await new.publish(topic, events.rollout_order("after"))
        assert await took.get() == "after"
        for task in working:
            task.cancel()


@pytest.mark.parametrize("kind", ["recorder", "curator"])
async def test_a_run_ends_before_new_partitions_split_a_group(config: Config, kind: str):
    name = f"{config.bus.prefix}trajectories"
    with pytest.raises(TopicGrown, match=rf"{name} was given partitions.*1 before, 3 now.*new run"):
        await ended(config, kind, lambda client: client.create_partitions({name: 3}))


async def test_a_curator_that_is_started_again_refuses_what_was_grown_meanwhile(config: Config):
    with admin.connect(config.bus) as client:
        add_partitions(client, 2, f"{config.bus.prefix}trajectories")
    with pytest.raises(TopicGrown, match="1 before, 2 now"):
        await run_until_stopped(curator.connect, config, "curator-0", asyncio.Event())


def test_a_reader_of_a_deleted_topic_names_it(config: Config, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sync_clients, "CHECK_INTERVAL_S", 1.0)
    name = config.bus.prefix + curated.TOPIC.name
    with sync_clients.TopicReader(config.bus, "test", curated.TOPIC) as reader:
        with admin.connect(config.bus) as client:
            client.delete_topics([name])
        with pytest.raises(ServiceUnavailable, match=rf"topic {name} is gone"):
            for _ in range(int(BOUND_S)):
                reader.poll(500)
