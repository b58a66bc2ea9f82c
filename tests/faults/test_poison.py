"""No record ends a consumer of a running circle: each is handled, a dead letter or a stub, and then the circle goes on.

The trainer's part is its consumer; a counter stands for what it would learn.
"""

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

import topics
from console.repair import dead_letters as letters
from console.runs.run_log import present_records, read_events
from dart_streams.bus import admin, dead_letters
from dart_streams.bus.clients import Publisher
from dart_streams.bus.compressed_batches import MAX_EXPANDED_BYTES
from dart_streams.bus.lag import LagReader, lag_reader
from dart_streams.bus.topology import has_dead_letters
from dart_streams.config import Config
from dart_streams.curation.in_memory import CountingTrainer
from tests.faults.generated_records import EVENT, Generator, Record, outcome_of
from tests.faults.poison import GZIP, SNAPPY, Place, built, raw_producer, send, send_raw
from tests.task_files import write_tasks
from tests.worker_runs import worker_process
from topics import Topic, weights, weights_serving
from trainer.data.consumer import CuratedConsumer, Position
from workers.curator.changelogs import changelog_topics
from workers.env.main import connect as env_worker
from workers.recorder.main import connect as recorder
from workers.rollout.main import connect as rollout_worker
from workers.rollout.scripted import ScriptedEngine
from workers.runtime.lifecycle import Connect, run_until_stopped

BOUND_S = 240.0
SEED = 11
RANDOM = 20
"""Generated records of each topic, beside one of each kind."""
LETTERS = {
    "rollout-orders": 1,
    "observations": 1,
    "action-requests": 1,
    "trajectories": 2,
    "task-difficulty": 1,
    "rollout-budgets": 1,
    "curated": 2,
}
"""Consumers that dead-letter what does not decode, by topic; others skip it: an unexpected response by its
key, weights and what the trainer and the agents tell with a line in the log."""
RULING = {weights.TOPIC, weights_serving.TOPIC}
"""Topics whose valid events rule over the circle, whoever sends them: of these only what does not decode is sent."""


class Poison(NamedTuple):
    """A record that was produced: where, and whether it decodes."""

    place: Place
    fault: str
    decodes: bool


class Trainer:
    """The trainer's consumer, and a counter in place of what it would learn."""

    def __init__(self, config: Config, publisher: Publisher) -> None:
        self.config = config
        self.publisher = publisher
        self.counter = CountingTrainer(config.trainer.groups_per_step)
        self.groups: set[str] = set()

    async def train(self) -> None:
        """Take groups and announce versions, for ever; what ends the consumer is raised here."""
        await self.announce()
        with CuratedConsumer(self.config.bus, Position(), self.config.policy.model_id, 1, 64, lambda: 1) as consumer:
            while True:
                arrival = await asyncio.to_thread(consumer.take, 0.5)
                if arrival is None or arrival.group.group_id in self.groups:
                    continue
                self.groups.add(arrival.group.group_id)
                if self.counter.take(arrival.group) is not None:
                    await self.announce()

    async def announce(self) -> None:
        version = msgspec.structs.replace(self.counter.weights(), model_id=self.config.policy.model_id)
        await self.publisher.publish(weights.TOPIC, version)


@contextlib.asynccontextmanager
async def running(config: Config, folder: Path, trainer: Trainer) -> AsyncIterator[Callable[[], None]]:
    """Run every process of the circle; what is yielded raises if one has ended. At the end all must stop cleanly."""
    stop = asyncio.Event()
    connects: dict[str, Connect] = {
        "recorder-0": recorder,
        "env-0": env_worker,
        "rollout-0": partial(rollout_worker, engine=ScriptedEngine(config)),
    }
    workers = {
        name: asyncio.create_task(run_until_stopped(connect, config, name, stop)) for name, connect in connects.items()
    }
    training = asyncio.create_task(trainer.train())
    log = folder / "curator.log"
    with worker_process("curator", config, folder, log) as curator:

        def check() -> None:
            for task in (training, *workers.values()):
                if task.done():
                    task.result()
            assert not any(task.done() for task in (training, *workers.values()))
            assert curator.poll() is None, log.read_text()[-4000:]

        try:
            yield check
            check()
        finally:
            training.cancel()
            stop.set()
            await asyncio.gather(training, return_exceptions=True)
            async with asyncio.timeout(BOUND_S):
                codes = await asyncio.gather(*workers.values(), return_exceptions=True)
    assert codes == [0] * len(workers)


async def until(condition: Callable[[], bool], check: Callable[[], None], what: Callable[[], str]) -> None:
    """Return when ``condition`` holds; fail at once if a process ends, and after :data:`BOUND_S`.

    The workers share this event loop: what blocks it for long costs them their places in their groups.
    """
    try:
        async with asyncio.timeout(BOUND_S):
            while not await asyncio.to_thread(condition):
                check()
                await asyncio.sleep(0.2)
    except TimeoutError:
        pytest.fail(f"after {BOUND_S:g} s not yet: {what()}")


def to_send(topic: Topic) -> list[Record]:
    """Return one record of each kind, some random ones, and a value of 8 MB, which can only come compressed."""
    generator = Generator(topic, SEED)
    large = generator.record("8 MB", "", b"0" * (8 << 20))
    records = [*generator.each(), *(generator.next() for _ in range(RANDOM)), large]
    return [record for record in records if topic not in RULING or outcome_of(record).result != EVENT]


async def poison(config: Config) -> list[Poison]:
    """Put every record on every topic, spread over the partitions; and batches that cannot or must not be expanded."""
    sent: list[Poison] = []
    bomb = await asyncio.to_thread(built, GZIP, b"k", bytes(MAX_EXPANDED_BYTES + 1), [])
    foreign = built(SNAPPY, b"k", b"{}", [])
    async with raw_producer(config.bus) as producer:
        for topic in topics.ALL:
            for number, record in enumerate(await asyncio.to_thread(to_send, topic)):
                place = await send(producer, config.bus, record, number % topic.partitions)
                sent.append(Poison(place, record.fault, outcome_of(record).result == EVENT))
            for fault, batch in (("bomb", bomb), ("codec", foreign)):
                place = await send_raw(producer, config.bus, topic, topic.partitions - 1, batch)
                sent.append(Poison(place, fault, decodes=False))
    return sent


def letters_of(config: Config) -> defaultdict[Place, list[dict[str, bytes]]]:
    """Return the headers of every dead letter there is, by the place of its record."""
    by_place: defaultdict[Place, list[dict[str, bytes]]] = defaultdict(list)
    for topic in letters.topics_with_letters(config.bus):
        for letter in present_records(config.bus, letters.dead_letter_topic(topic)):
            known = letters.letter_headers(letter)
            partition, offset = (int(known[name]) for name in (dead_letters.PARTITION, dead_letters.OFFSET))
            by_place[Place(topic.name, partition, offset)].append(known)
    return by_place


def missing(config: Config, sent: list[Poison]) -> list[Poison]:
    """Return what does not decode and has fewer letters than it should."""
    by_place = letters_of(config)
    return [
        record
        for record in sent
        if not record.decodes and len(by_place[record.place]) < LETTERS.get(record.place.topic, 0)
    ]


async def passed(reader: LagReader, sent: list[Poison]) -> bool:
    """Say whether every group that reads a topic has committed past all that was sent to it."""
    lags = await reader.read() or []
    ends = {record.place[:2]: record.place.offset for record in sorted(sent)}
    read = {(lag.topic, lag.partition): lag.committed for lag in sorted(lags, key=lambda lag: -lag.committed)}
    everyone = {topic for topic, _ in read} >= set(LETTERS)
    return everyone and all(committed > ends[place] for place, committed in read.items() if place in ends)


def served(config: Config) -> int:
    """Return the newest version that the rollout worker has announced."""
    return max((event.version for event in read_events(config.bus, [weights_serving.TOPIC])), default=-1)


@pytest.fixture
def config(services, tmp_path: Path) -> Config:
    config = services.config(
        tasks=write_tasks(tmp_path, "box", max_steps=3, train=(0, 12), heldout=(100, 102)),
        run={"drain_s": 6, "state_dir": str(tmp_path)},
        env={"backend": "simulated", "slots": 4},
        rollout={"engine": "scripted", "scripted": {"success_rate": 0.5, "latency_ms": 5}},
        trainer={"groups_per_step": 2},
    )
    admin.apply_all(config.bus, changelog_topics(config))
    return config


@pytest.mark.timeout(900)
async def test_no_record_ends_a_consumer(config: Config, tmp_path: Path):
    async with Publisher(config.bus, "test") as publisher:
        trainer = Trainer(config, publisher)
        async with running(config, tmp_path, trainer) as check:
            await until(lambda: trainer.counter.version >= 1, check, lambda: "a first step")
            sent = await poison(config)
            await until(lambda: not missing(config, sent), check, lambda: f"letters of {missing(config, sent)[:5]}")
            await turns_on(config, trainer, check)
            async with lag_reader(config.bus) as reader, asyncio.timeout(BOUND_S):
                while not await passed(reader, sent):
                    check()
                    await asyncio.sleep(0.5)
        check_letters(config, sent)
        # Once more from the state that this left: journal, offsets, and the topics with all of it in them.
        async with running(config, tmp_path, trainer) as check:
            await turns_on(config, trainer, check)
    assert not missing(config, sent)


async def turns_on(config: Config, trainer: Trainer, check: Callable[[], None]) -> None:
    """Return when new groups have been trained and the version they made is served: every process took part in it."""
    wanted = trainer.counter.version + 2
    await until(lambda: trainer.counter.version >= wanted, check, lambda: f"version {wanted} trained")
    await until(lambda: served(config) >= wanted, check, lambda: f"version {wanted} served")


def check_letters(config: Config, sent: list[Poison]) -> None:
    """What does not decode has as many letters as it has consumers; what no letter can carry is a stub, no other is."""
    by_place = letters_of(config)
    counts = {record.place: len(by_place[record.place]) for record in sent if not record.decodes}
    # Some may have more: a member that the broker has thrown out reads again what it had not committed.
    fewest = {place.topic: count for place, count in sorted(counts.items(), key=lambda one: -one[1])}
    assert fewest == {topic: LETTERS.get(topic, 0) for topic in fewest}
    assert {place.topic for place, count in counts.items() if count} == set(LETTERS)
    assert sum(counts.values()) > 20 * len(LETTERS)
    stubs = Counter(record.fault for record in sent for known in by_place[record.place] if dead_letters.STUB in known)
    assert {"null", "at the limit", "8 MB", "bomb", "codec"} <= set(stubs)
    assert set(stubs) <= {"null", "at the limit", "8 MB", "bomb", "codec", "headers"}
    assert not has_dead_letters(weights.TOPIC)
