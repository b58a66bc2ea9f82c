"""The curator on a real broker, with simulated rollouts and a trainer that only counts."""

import asyncio
import contextlib
import json
import os
import random
import re
import shutil
import signal
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from aiokafka import ConsumerRecord
from faust.tables.recovery import Recovery
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread
from faust.types import TP

import topics
from benchmarks.curation_world import Odds, play
from console.repair.dead_letters import dead_letter_topic
from console.runs.bundle import BundleRecord
from console.runs.run_folder import write_toml
from console.runs.run_log import present_records
from dart_streams.bus import admin, clients, dead_letters, sync_clients
from dart_streams.bus.clients import Publisher, create_consumer, event_of, start_within
from dart_streams.bus.codec import ID, find_header
from dart_streams.config import Config
from dart_streams.config.tasks import load
from dart_streams.curation import journal
from dart_streams.curation.agents import bind_agents
from dart_streams.curation.changelog import ChangelogView
from dart_streams.curation.in_memory import CountingTrainer
from dart_streams.curation.reducer import InputRecord, advance
from dart_streams.deadline import Deadline
from dart_streams.errors import ConfigError, ServiceUnavailable
from tests import events, fork_server
from tests.fork_server import PROGRAM, Forked
from tests.task_files import write_tasks
from tests.topic_reader import TopicReader, add_partitions, delete_topics
from tests.waiting import wait_until
from tests.worker_runs import BOUND_S, running_worker, throw_out
from topics import curated, curation_log, rollout_budgets, rollout_orders, task_difficulty, trajectories, weights
from topics.rollout_orders import RolloutOrder
from topics.trajectories import Trajectory
from workers.curator import durable_agent, recovery_watch
from workers.curator.changelogs import SOURCES, application_id, changelog_of, changelog_topics
from workers.curator.journal_writer import read_from
from workers.curator.journaled_state import JournaledState
from workers.curator.main import connect
from workers.curator.recovery_watch import RecoveryStuck
from workers.curator.transport import Consumer
from workers.runtime import lifecycle

KILLS = 20 if "DART_SLOW_TESTS" in os.environ else 3
BETWEEN = 80 if "DART_SLOW_TESTS" in os.environ else 40
"""Rollouts between two kills."""
CHANGELOGS = tuple(f"curator-{name}-changelog" for name, source in SOURCES.items() if source)
pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def configure(services, tmp_path: Path) -> Callable[..., Config]:
    tasks = write_tasks(tmp_path, "grid", max_steps=10, train=(0, 20), heldout=(1000, 1001))

    def make(**tables) -> Config:
        config = services.config(
            tasks=tasks,
            run={"drain_s": 6, "state_dir": str(tmp_path)},
            **{"env": {"slots": 4}, "trainer": {"groups_per_step": 2}, **tables},
        )
        admin.apply_all(config.bus, changelog_topics(config))
        write_toml(tmp_path / "config.toml", config)
        return config

    return make


class Curator:
    """A curator process of its own, that can be killed and started again, also by Faust's own command."""

    def __init__(self, folder: Path, name: str = "curator-0", log: str = "", *, by_faust: bool = False) -> None:
        self.config = folder / "config.toml"
        self.name = name
        self.log = folder / f"{log or name}.log"
        self.start(by_faust=by_faust)

    def start(self, *, by_faust: bool = False) -> None:
        ours = [PROGRAM, "worker", "curator", "--config", self.config, "--id", self.name]
        fausts = [PROGRAM.with_name("faust"), "-A", "workers.curator.app", "worker"]
        self.started_at = len(self.log.read_text()) if self.log.exists() else 0
        with self.log.open("a") as log:
            self.process = Forked(
                fausts if by_faust else ours, stdout=log, stderr=log, env=os.environ | {"DART_CONFIG": str(self.config)}
            )

    def works(self) -> bool:
        """Return whether it has restored a state since it was started."""
        return "state restored" in self.lines()

    def lines(self) -> str:
        """Return what it has logged since it was started."""
        return self.log.read_text()[self.started_at :]

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Ask it to end and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(BOUND_S)


@contextlib.contextmanager
def curating(folder: Path, name: str = "curator-0", log: str = "") -> Iterator[Curator]:
    curator = Curator(folder, name, log)
    try:
        yield curator
    finally:
        curator.kill()


class Harness:
    """Everything but the curator: plays orders a few at a time, in random order, and trains."""

    def __init__(self, config: Config, publisher: Publisher, seed: int = 0) -> None:
        self.config = config
        self.publisher = publisher
        self.trainer = CountingTrainer(config.trainer.groups_per_step)
        self.odds = Odds(faults=0.05, partial=0.1, lift=0.01)
        self.random = random.Random(seed)
        self.orders: dict[str, RolloutOrder] = {}
        self.waiting: list[RolloutOrder] = []
        self.groups: set[str] = set()
        self.played = 0

    async def play(self, enough: Callable[[], bool], bound_s: float = BOUND_S) -> None:
        """Go on until there is enough."""
        records = create_consumer(
            self.config.bus, rollout_orders.TOPIC, curated.TOPIC, group=f"w{uuid.uuid4().hex}", client_id="test"
        )
        await start_within(records, self.config.bus)
        try:
            async with asyncio.timeout(bound_s):
                await self.publisher.publish(weights.TOPIC, self.trainer.weights())
                while not enough():
                    for batch in (await records.getmany(timeout_ms=20)).values():
                        for record in batch:
                            await self.take(record)
                    await self.end_some()
        finally:
            await records.stop()

    async def until_played(self, number: int, playing: asyncio.Task) -> None:
        """Return when ``number`` rollouts have ended, or no more will."""
        async with asyncio.timeout(BOUND_S):
            while self.played < number and not playing.done():
                await asyncio.wait({playing}, timeout=0.005)

    async def until(self, condition: Callable[[], bool], playing: asyncio.Task) -> None:
        """Return when a condition holds, or no more will be played."""
        async with asyncio.timeout(BOUND_S):
            while not condition() and not playing.done():
                await asyncio.wait({playing}, timeout=0.02)

    async def take(self, record: ConsumerRecord) -> None:
        if record.topic.endswith(rollout_orders.TOPIC.name):
            order = event_of(rollout_orders.TOPIC, record)
            if order.order_id not in self.orders:
                self.orders[order.order_id] = order
                self.waiting.append(order)
            return
        group = event_of(curated.TOPIC, record)
        if group.group_id not in self.groups:
            self.groups.add(group.group_id)
            version = self.trainer.take(group)
            if version is not None:
                await self.publisher.publish(weights.TOPIC, version)

    async def end_some(self) -> None:
        self.random.shuffle(self.waiting)
        ending, self.waiting = self.waiting[:6], self.waiting[6:]
        for order in ending:
            trajectory = play(order, self.trainer.version, self.odds)
            await self.publisher.publish(trajectories.TOPIC, trajectory, record_id=trajectory.trajectory_id)
            self.played += 1


async def everything(config: Config, *wanted: topics.Topic) -> dict[str, list[BundleRecord]]:
    """Return all records of topics as they are now, by the topic's name, in order within a partition."""
    return {topic.name: await asyncio.to_thread(list, present_records(config.bus, topic)) for topic in wanted}


def identity(record: BundleRecord) -> str:
    return (find_header(record.headers, ID) or b"").decode()


def unique(records: list[BundleRecord]) -> dict[str, bytes]:
    """Return the values of records by id; the repeats of a record must be byte for byte the same."""
    values: dict[str, bytes] = {}
    for record in records:
        assert values.setdefault(identity(record), record.value) == record.value, identity(record)
    return values


async def replayed(config: Config) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Return what the agents decided and what they decide again over the same inputs in the logged order, by id."""
    inputs = (trajectories.TOPIC, task_difficulty.TOPIC, rollout_budgets.TOPIC, curated.TOPIC, weights.TOPIC)
    records = await everything(config, *inputs, rollout_orders.TOPIC, curation_log.TOPIC)
    outputs = (task_difficulty.TOPIC, rollout_budgets.TOPIC, curated.TOPIC, rollout_orders.TOPIC)
    decided = {key: value for topic in outputs for key, value in unique(records[topic.name]).items()}
    logged = {key: msgspec.json.decode(value) for key, value in unique(records[curation_log.TOPIC.name]).items()}
    by_place = {(name, r.partition, r.offset): r for name, of_topic in records.items() for r in of_topic}
    again: dict[str, bytes] = {}
    for agent in bind_agents(config, load(Path(config.tasks.file))):
        states = defaultdict(agent.state)
        for entry in logged.values():
            if entry["agent"] != agent.name:
                continue
            topic, partition, offset = entry["source"].values()
            record = by_place[topic, partition, offset]
            event = event_of(topics.BY_NAME[topic], record)
            where = 0 if SOURCES[agent.name] is None else partition
            step = advance(agent, states[where], InputRecord(topic, partition, offset, event, identity(record)))
            states[where] = step.state
            assert [decision.id for decision in step.decisions] == entry["decisions"]
            assert step.applied.state_digest == entry["state_digest"]
            again |= {decision.id: msgspec.json.encode(decision.event) for decision in step.decisions}
    return decided, again


@pytest.mark.timeout(300 + 60 * KILLS)
async def test_a_curator_that_is_killed_often_decides_as_a_replay_does(configure, tmp_path):
    """It is started by our command and by Faust's own in turn, and asked to end by each of them."""
    config = configure()
    rng = random.Random(1)
    async with Publisher(config.bus, "test") as publisher:
        harness = Harness(config, publisher)
        with curating(tmp_path) as curator:
            playing = asyncio.create_task(
                harness.play(lambda: harness.played >= BETWEEN * (KILLS + 1), BOUND_S * (KILLS + 1))
            )
            for kill in range(KILLS):
                await harness.until_played(BETWEEN * kill + rng.randrange(BETWEEN), playing)
                curator.kill()
                curator.start(by_faust=kill % 2 == 0)
            await playing
            assert curator.stop() == 0
            curator.start(by_faust=KILLS % 2 == 0)
            await asyncio.to_thread(wait_until, curator.works)
            assert curator.stop() == 0
    assert len(harness.trainer.trained) > 2 * KILLS
    await check_one_history(config, harness)


@pytest.mark.parametrize("changelogs", ["kept", "wiped"])
async def test_a_curator_whose_tables_are_wiped_comes_back_with_its_whole_state(configure, tmp_path, changelogs):
    """The local store is restored from the changelogs, and without those from the topics."""
    config = configure()
    async with Publisher(config.bus, "test") as publisher:
        harness = Harness(config, publisher)
        with curating(tmp_path) as curator:
            playing = asyncio.create_task(harness.play(lambda: harness.played >= 2 * BETWEEN, 2 * BOUND_S))
            await harness.until_played(BETWEEN, playing)
            curator.kill()
            shutil.rmtree(config.run.folder / "faust")
            if changelogs == "wiped":
                wipe(config, [spec.name for spec in changelog_topics(config)])
            curator.start()
            await playing
            assert curator.stop() == 0
            lines = [json.loads(line) for line in curator.lines().splitlines() if line[:1] == "{"]
    restored = {line["agent"]: line["batches"] for line in lines if line["event"] == "state restored"}
    assert restored.keys() == set(SOURCES)
    assert (min(restored.values()) > 0) == (changelogs == "kept")
    recalled = {line["agent"]: line["differs_from"] for line in lines if "rebuilt from the topics" in line["event"]}
    assert recalled == (dict.fromkeys(SOURCES) if changelogs == "wiped" else {})
    await check_one_history(config, harness)


ENDINGS = ("left alone", "slept through its session", "terminated", "killed", "woken alone")
"""What becomes of a curator that was frozen and replaced: ended, left, or left as the only one."""
OTHERS = ("left alone", "terminated", "killed", "woken alone") if "DART_SLOW_TESTS" in os.environ else ENDINGS[:1]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("successor", "endings"), [("curator-0", ENDINGS), ("curator-1", OTHERS)])
async def test_a_frozen_curator_that_was_replaced_changes_nothing(configure, tmp_path, successor, endings):
    """The successor has the same or another member id, and is frozen in its turn."""
    config, enough = configure(), asyncio.Event()
    async with Publisher(config.bus, "test") as publisher:
        harness = Harness(config, publisher)
        with curating(tmp_path) as stale, curating(tmp_path, successor, "successor") as other:
            other.kill()
            playing = asyncio.create_task(harness.play(enough.is_set, 4 * BOUND_S * len(endings)))
            await harness.until_played(BETWEEN, playing)
            for ending in endings:
                await replace_frozen(stale, other, ending, harness, playing)
                assert "rebuilt from the topics" not in other.lines(), ending
                stale, other = other, stale
            enough.set()
            await playing
            assert stale.stop() == 0
    await check_one_history(config, harness)


async def replace_frozen(stale: Curator, other: Curator, ending: str, harness: Harness, playing: asyncio.Task) -> None:
    """Freeze a curator, replace it, wake it; then kill both, and start the successor again."""
    same = stale.name == other.name
    stale.freeze()
    if ending == "slept through its session" or not same:
        await asyncio.to_thread(throw_out, harness.config, "curator", stale.name)
    other.start()
    await harness.until(other.works, playing)
    await harness.until_played(harness.played + BETWEEN, playing)
    if ending == "woken alone":
        other.kill()
    stale.wake()
    await end(stale, ending, harness, playing, same=same)
    if ending == "woken alone":
        other.start()
        await harness.until(other.works, playing)
    enough = harness.played + BETWEEN
    if not same:  # A member that ends keeps its partitions until its session has ended.
        await harness.until(lambda: harness.played >= enough or stale.process.poll() is not None, playing)
        stale.kill()
        await asyncio.to_thread(throw_out, harness.config, "curator", stale.name)
    await harness.until_played(enough, playing)
    for curator in (stale, other):
        curator.kill()
    other.start()
    await harness.until(other.works, playing)
    await harness.until_played(harness.played + BETWEEN, playing)


async def end(stale: Curator, ending: str, harness: Harness, playing: asyncio.Task, *, same: bool) -> None:
    """Wait for the end of a curator that has just woken up; one with another id may become a member again."""
    if ending == "killed":
        stale.kill()
    elif ending == "terminated":
        stale.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(stale.process.wait, BOUND_S)
    elif same:
        await harness.until(lambda: stale.process.poll() is not None, playing)
        assert stale.process.poll() == 1, stale.lines()[-3000:]
        assert stale.lines().count(" belongs to another curator process now (curator-0)") == 1
        assert "Traceback" not in stale.lines()


async def check_one_history(config: Config, harness: Harness) -> None:
    """Check that every order is of one task, and that all decisions are those of a replay of curation-log."""
    orders = await asyncio.to_thread(sync_clients.read_events, config.bus, "test", rollout_orders.TOPIC)
    task_of = {(order.order_id, order.task_id) for order in orders}
    assert [order for order, times in Counter(order for order, _ in task_of).items() if times > 1] == []
    decided, again = await replayed(config)
    assert decided == again
    assert set(decided) >= set(harness.orders)


async def test_a_damaged_journal_is_rebuilt_from_the_topics_and_logged(configure, tmp_path):
    config, enough = configure(), asyncio.Event()
    async with Publisher(config.bus, "test") as publisher:
        harness = Harness(config, publisher)
        with curating(tmp_path) as curator:
            playing = asyncio.create_task(harness.play(enough.is_set, 3 * BOUND_S))
            await harness.until_played(BETWEEN, playing)
            curator.kill()
            await lose_a_batch(config, publisher, "groups")
            curator.start()
            await harness.until(curator.works, playing)
            await harness.until_played(harness.played + BETWEEN, playing)
            assert curator.stop() == 0
            assert "journal damaged (groups: the journal of partition 0 has no batch" in curator.lines()
            curator.start()
            await harness.until_played(harness.played + BETWEEN, playing)
            enough.set()
            await playing
            assert curator.stop() == 0
            assert "state restored" in curator.lines()
            assert "rebuilt from the topics" not in curator.lines()
    await check_one_history(config, harness)


async def lose_a_batch(config: Config, publisher: Publisher, agent: str) -> None:
    """Delete the first batch after the snapshot of an agent's journal."""
    topic, view = changelog_of(config, agent), ChangelogView()
    for record in await read_from(config.bus, topic, 0, 0):
        view.note_read(record.offset, record.key, record.value)
    snapshot, entries, _ = journal.read_history(view.stored(), 0)
    assert snapshot is not None
    later = sorted((entry for entry in entries if entry.sequence > snapshot.sequence), key=lambda e: e.sequence)
    assert len(later) > 1
    lost = journal.encode(later[0])
    [key] = [key for key, value in view.stored().items() if value == lost]
    await publisher.producer.send_and_wait(topic, None, key=key, partition=0)


def living(config: Config) -> contextlib.AbstractAsyncContextManager[asyncio.Task[int]]:
    return running_worker(connect, config, "curator-0")


async def first(
    config: Config, topic: topics.Topic, matching: Callable[[ConsumerRecord], Any] = lambda record: True
) -> ConsumerRecord:
    async with TopicReader(config, topic) as reader:
        return await reader.first(matching)


def finished(sample: int, **fields) -> Trajectory:
    values = {
        "trajectory_id": f"t{sample}",
        "order_id": f"g000000/{sample}/0",
        "group_id": "g000000",
        "group_size": 2,
        "task_id": "simulated/grid#0",
        "outcome": "success" if sample == 0 else "failure",
        "reward": 1.0 if sample == 0 else 0.0,
        "steps": 2,
        "step_entropies": [0.1, 0.2],
    }
    return events.trajectory(**values | fields)


async def test_what_cannot_be_applied_is_put_aside_whole_and_the_curator_goes_on(configure):
    config = configure()
    name = config.bus.prefix + trajectories.TOPIC.name
    async with Publisher(config.bus, "test") as publisher, living(config):
        await publisher.producer.send_and_wait(name, b"not json", key=b"k", headers=[("x", b"y")])
        await publisher.publish(trajectories.TOPIC, finished(0, reward=None))
        await publisher.publish(trajectories.TOPIC, finished(1, order_id="not-ours"))
        await publisher.publish(trajectories.TOPIC, finished(0))
        await publisher.publish(trajectories.TOPIC, finished(1))
        group = event_of(curated.TOPIC, await first(config, curated.TOPIC))
    assert [member.trajectory_id for member in group.members] == ["t0", "t1"]
    [letters] = (await everything(config, dead_letter_topic(trajectories.TOPIC))).values()
    assert {letter.key for letter in letters} == {b"k", b"simulated/grid#0"}
    garbled = next(letter for letter in letters if letter.key == b"k")
    assert (garbled.value, find_header(garbled.headers, "x")) == (b"not json", b"y")
    places = {
        (find_header(letter.headers, dead_letters.TOPIC), find_header(letter.headers, dead_letters.OFFSET))
        for letter in letters
    }
    assert places == {(name.encode(), b"0"), (name.encode(), b"1"), (name.encode(), b"2")}
    reasons = b" ".join(find_header(letter.headers, dead_letters.ERROR) or b"" for letter in letters)
    assert b"outcome success with reward None" in reasons
    assert b"order 'not-ours'" in reasons


async def test_an_agent_that_fails_ends_the_curator_and_acknowledges_nothing(configure, monkeypatch):
    """Faust acknowledges what an agent has taken and restarts the agent, if it may."""
    config = configure()
    async with Publisher(config.bus, "test") as publisher:
        await publisher.publish(trajectories.TOPIC, finished(0), record_id="t0")
        with monkeypatch.context() as patch, pytest.raises(LookupError, match="no such rule"):
            patch.setattr(JournaledState, "apply", Mock(side_effect=LookupError("no such rule")))
            async with asyncio.timeout(BOUND_S):
                await lifecycle.run_until_stopped(connect, config, "curator-0", asyncio.Event())
        with admin.connect(config.bus) as client:
            offsets = client.list_group_offsets({application_id(config): None})[application_id(config)]
        assert all(committed.offset <= 0 for committed in offsets.values())
        async with living(config):
            await first(config, rollout_budgets.TOPIC)


async def test_the_trace_of_a_rollout_goes_on_through_all_four_agents(configure):
    config = configure()
    trace = [("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]
    async with Publisher(config.bus, "test") as publisher, living(config):
        await publisher.publish(weights.TOPIC, CountingTrainer(2).weights())
        await first(config, rollout_orders.TOPIC)
        for sample in range(8):
            ended = finished(sample, group_size=8)
            await publisher.publish(trajectories.TOPIC, ended, headers=trace if sample in (0, 7) else [])
        for topic in (task_difficulty, rollout_budgets, curated, curation_log, rollout_orders):
            traced = await first(config, topic.TOPIC, lambda record: find_header(record.headers, "traceparent"))
            assert find_header(traced.headers, "traceparent") == trace[0][1]


async def test_the_tasks_command_lists_every_group_of_every_task_and_why(configure, tmp_path):
    config = configure()
    async with Publisher(config.bus, "test") as publisher, living(config):
        harness = Harness(config, publisher)
        await harness.play(lambda: harness.played >= 200)
    orders = await asyncio.to_thread(sync_clients.read_events, config.bus, "test", rollout_orders.TOPIC)
    rows = await listed_tasks(tmp_path)
    opened = {(order.task_id, order.group_id) for order in orders}
    assert {row["task"]: row["groups"] for row in rows if row["groups"]} == Counter(task for task, _ in opened)
    busiest = max(rows, key=lambda row: row["groups"])
    groups = await listed_tasks(tmp_path, busiest["task"])
    assert {(busiest["task"], group["group_id"]) for group in groups} <= opened
    assert len(groups) == busiest["groups"] > 1
    assert groups[0]["why"] == "because nothing was known yet"
    assert re.search(r"because [\d.]+ of the last \d+ succeeded; at most \d+ steps?, ", groups[-1]["why"])


async def listed_tasks(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """Return what ``dart-streams tasks`` prints as JSON."""
    command = [PROGRAM, "tasks", *arguments, "--config", folder / "config.toml", "--json"]
    ended = await asyncio.to_thread(fork_server.run, command, timeout=BOUND_S)
    return json.loads(ended.stdout)


def waits(consumer: Consumer, place: TP, offset: int) -> bool:
    """Return whether a record waits in a stream's buffer."""
    queues = consumer.app.flow_control._queues
    return any(
        event.message.tp == place and event.message.offset == offset for queue in queues for event in queue._queue
    )


async def test_records_that_come_while_a_curator_seeks_are_not_lost(configure, monkeypatch):
    """Not even the last ones, after which none comes that would show it. An agent takes one at a time here."""
    config = configure()
    monkeypatch.setattr(durable_agent, "MAX_BATCH", 1)
    seek, publishing = Consumer.perform_seek, []
    place = TP(config.bus.prefix + trajectories.TOPIC.name, 0)
    endings = [
        finished(0, trajectory_id=f"t{number}", order_id=f"g{number:06d}/0/0", group_id=f"g{number:06d}")
        for number in range(1, 21)
    ]

    async def seek_until_the_last_waits(consumer: Consumer) -> None:
        await seek(consumer)
        if publishing:
            return
        publishing.extend(
            asyncio.create_task(publisher.publish(trajectories.TOPIC, ended, record_id=ended.trajectory_id))
            for ended in endings
        )
        async with asyncio.timeout(BOUND_S):
            while not waits(consumer, place, len(endings)):  # noqa: ASYNC110 - a turn later it may be taken
                await asyncio.sleep(0)

    async with Publisher(config.bus, "test") as publisher:
        async with living(config):
            await publisher.publish(trajectories.TOPIC, finished(0), record_id="t0")
            await first(config, rollout_budgets.TOPIC)
        monkeypatch.setattr(Consumer, "perform_seek", seek_until_the_last_waits)
        async with living(config):
            await first(config, curation_log.TOPIC, applied_by_all(21))
        await asyncio.gather(*publishing)
    assert publishing


async def test_a_curator_whose_tables_are_never_recovered_ends_and_says_so(configure, monkeypatch):
    """Faust does so now and then when the broker is back after a minute."""
    config = configure()
    async with Publisher(config.bus, "test") as publisher:
        async with living(config):
            await publisher.publish(trajectories.TOPIC, finished(0), record_id="t0")
            await first(config, rollout_budgets.TOPIC)
        monkeypatch.setattr(recovery_watch, "RECOVERY_TIMEOUT_S", 2.0)
        monkeypatch.setattr(Recovery, "need_recovery", lambda recovery: True)
        with pytest.raises(RecoveryStuck, match="tables are not recovered: no changelog record has arrived"):
            async with asyncio.timeout(BOUND_S):
                await lifecycle.run_until_stopped(connect, config, "curator-0", asyncio.Event())


async def test_an_input_without_commits_is_read_from_its_beginning(configure, monkeypatch):
    config = configure()
    seek, consumers = Consumer.perform_seek, []

    async def noted(consumer: Consumer) -> None:
        consumers.append(consumer)
        await seek(consumer)

    async def not_yet(consumer: Consumer, *_: Any, **__: Any) -> bool:
        return False

    monkeypatch.setattr(Consumer, "perform_seek", noted)
    monkeypatch.setattr(Consumer, "commit", not_yet)
    place = TP(config.bus.prefix + trajectories.TOPIC.name, 0)
    async with Publisher(config.bus, "test") as publisher, living(config):
        await publisher.publish(trajectories.TOPIC, finished(0), record_id="t0")
        await first(config, rollout_budgets.TOPIC)
        consumer = consumers[-1]
        assert await consumer.position(place) == 1
        consumer.stop_flow()
        await consumer.perform_seek()
        assert await consumer.position(place) == 0
        consumer.resume_flow()
        await publisher.publish(trajectories.TOPIC, finished(1), record_id="t1")
        await first(config, curated.TOPIC)


async def test_what_was_taken_before_a_seek_does_not_come_after_it(configure, monkeypatch):
    """Otherwise Faust would drop the records that are read anew as repetitions."""
    config, getmany, came = configure(), Consumer.getmany, []
    place = TP(config.bus.prefix + trajectories.TOPIC.name, 0)

    async def seeking(consumer: Consumer, timeout: float) -> AsyncIterator[Any]:  # noqa: ASYNC109
        async for tp, message in getmany(consumer, timeout):
            yield tp, message
            if tp == place:
                came.append(message.offset)
                if len(came) == 3:
                    await consumer.seek_wait({place: 0})

    monkeypatch.setattr(Consumer, "getmany", seeking)
    async with Publisher(config.bus, "test") as publisher:
        for sample in range(10):
            group = {"order_id": f"g{sample // 2:06d}/{sample % 2}/0", "group_id": f"g{sample // 2:06d}"}
            await publisher.publish(trajectories.TOPIC, finished(sample % 2, trajectory_id=f"t{sample}", **group))
        async with living(config):
            await first(config, curation_log.TOPIC, applied_by_all(10))
    assert came[:6] == [0, 1, 2, 0, 1, 2]


async def test_tables_recover_where_a_fetch_outlives_the_seek_of_a_rebalance(configure, monkeypatch):
    """The fetch takes changelog records, which Faust drops because the flow is suspended."""
    config, fetch, seek = configure(), AIOKafkaConsumerThread._fetch_records, Recovery._seek_offsets
    threads, waiting, rejoined, outlived = [], set(), asyncio.Event(), Counter()

    async def noted(thread: AIOKafkaConsumerThread, *arguments: Any, **bounds: Any) -> Any:
        threads[:], fetching = [thread], object()
        waiting.add(fetching)
        try:
            records = await fetch(thread, *arguments, **bounds | {"timeout": 5.0})
        finally:
            waiting.remove(fetching)
        if not thread.consumer.flow_active:
            outlived.update(place.topic for place, taken in records.items() if taken)
        return records

    async def seek_beneath_a_fetch(recovery: Recovery, *arguments: Any) -> None:
        await seek(recovery, *arguments)
        async with asyncio.timeout(BOUND_S):
            while rejoined.is_set() and waiting:  # noqa: ASYNC110 - of another thread's loop
                await asyncio.sleep(0.01)

    monkeypatch.setattr(AIOKafkaConsumerThread, "_fetch_records", noted)
    monkeypatch.setattr(Recovery, "_seek_offsets", seek_beneath_a_fetch)
    async with Publisher(config.bus, "test") as publisher, living(config):
        await publisher.publish(trajectories.TOPIC, finished(0), record_id="t0")
        await first(config, rollout_budgets.TOPIC)
        rejoined.set()
        (thread,) = threads
        for _ in range(5):  # A fetch may end before the seek. A rebalance within a recovery is another test.
            thread.thread_loop.call_soon_threadsafe(thread._ensure_consumer()._coordinator.request_rejoin)
            left = Deadline(20.0)
            while not (taken := any("changelog" in topic for topic in outlived)) and not left.expired:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            if taken:
                break
        assert taken, outlived
        await publisher.publish(trajectories.TOPIC, finished(1), record_id="t1")
        await first(config, curated.TOPIC)


async def test_an_agents_partitions_have_a_state_each(configure):
    config = configure()
    grow(config, 3, trajectories.TOPIC.name, task_difficulty.TOPIC.name, *CHANGELOGS)
    tasks = [f"simulated/grid#{number}" for number in range(12)]
    async with Publisher(config.bus, "test") as publisher, living(config):
        for number, task_id in enumerate(tasks):
            for sample in range(2):
                ended = finished(
                    sample, task_id=task_id, order_id=f"g{number:06d}/{sample}/0", trajectory_id=f"{number}.{sample}"
                )
                await publisher.publish(trajectories.TOPIC, ended)
        await first(config, curation_log.TOPIC, applied_by_all(24))
    groups, budgets = (await everything(config, curated.TOPIC, rollout_budgets.TOPIC)).values()
    assert sorted(event_of(curated.TOPIC, record).task_id for record in groups) == sorted(tasks)
    assert len(budgets) == 24


@pytest.mark.skipif("DART_SLOW_TESTS" not in os.environ, reason="waits for session time-outs: set DART_SLOW_TESTS=1")
async def test_two_curators_share_the_partitions_and_one_goes_on_alone(configure, tmp_path):
    config = configure()
    grow(config, 3, trajectories.TOPIC.name, task_difficulty.TOPIC.name, *CHANGELOGS)
    async with Publisher(config.bus, "test") as publisher:
        harness = Harness(config, publisher)
        with curating(tmp_path) as curator, curating(tmp_path, "curator-1") as other:
            playing = asyncio.create_task(harness.play(lambda: harness.played >= 240 and other.works(), BOUND_S * 3))
            await harness.until_played(80, playing)
            assert other.stop() == 0
            await harness.until_played(160, playing)
            other.start()
            await playing
            assert curator.stop() == other.stop() == 0
    await check_one_history(config, harness)


def wipe(config: Config, names: list[str]) -> None:
    """Delete changelogs and make them anew, empty."""
    with admin.connect(config.bus) as client:
        delete_topics(client, names)  # what the broker still lists would not be made anew
    admin.apply_all(config.bus, changelog_topics(config))


def grow(config: Config, partitions: int, *names: str) -> None:
    with admin.connect(config.bus) as client:
        add_partitions(client, partitions, *(config.bus.prefix + name for name in names))


def applied_by_all(number: int) -> Callable[[ConsumerRecord], bool]:
    """Return a condition on curation-log: true once each agent has applied a number of rollouts."""
    applied: Counter[str] = Counter()

    def is_enough(record: ConsumerRecord) -> bool:
        applied[event_of(curation_log.TOPIC, record).agent] += 1
        return all(applied[name] >= number for name in ("difficulty", "groups", "budget"))

    return is_enough


async def test_dispatch_refuses_inputs_of_several_partitions(configure):
    config = configure()
    grow(config, 2, rollout_budgets.TOPIC.name)
    with pytest.raises(ConfigError, match="rollout-budgets has 2 partitions: dispatch needs it to have one"):
        await lifecycle.run_until_stopped(connect, config, "curator-0", asyncio.Event())


async def test_a_curator_whose_topics_are_not_there_says_how_to_make_them(configure, monkeypatch):
    monkeypatch.setattr(clients, "start_within", lambda client, bus: client.start())  # Topics alone have a second.
    config = configure()
    lost = msgspec.structs.replace(config, bus=msgspec.structs.replace(config.bus, prefix="missing.", wait_s=1.0))
    with pytest.raises(ServiceUnavailable, match=r"has no topic 'missing\.trajectories'.*topics apply"):
        await lifecycle.run_until_stopped(connect, lost, "curator-0", asyncio.Event())
