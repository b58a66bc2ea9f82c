"""The rollout worker with the scripted engine on a real broker."""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import pytest

from dart_streams.bus import admin, clients, dead_letters
from dart_streams.bus.clients import Publisher
from dart_streams.bus.codec import find_header
from dart_streams.config import Config, Rollout, TopicSettings
from tests import events
from tests.events import weight_version
from tests.topic_reader import TopicReader
from tests.worker_runs import BOUND_S, exit_code_of, running_worker, worker_process
from topics import Topic, action_requests, actions, weights, weights_serving
from topics.action_requests import ActionRequest
from topics.actions import ActionResponse
from topics.values import BlobRef, MessagePart
from topics.weights import WeightPart, WeightVersion
from workers.rollout import main, weight_updater
from workers.rollout.engine import EngineDead, EngineFault, Generation, LoadFault
from workers.rollout.main import connect
from workers.rollout.scripted import ScriptedEngine
from workers.runtime.lifecycle import run_until_stopped

QUICK = {"engine": "scripted", "scripted": {"success_rate": 1.0}}
FIRST = weight_version(0)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Workers beat often, learn soon that others come or go, and try weights again soon."""
    monkeypatch.setattr(clients, "HEARTBEAT_INTERVAL_MS", 200)
    monkeypatch.setattr(clients, "SESSION_TIMEOUT_MS", 60_000)
    monkeypatch.setattr(Rollout, "heartbeat_s", 0.1)
    monkeypatch.setattr(weight_updater, "RETRY_INTERVAL_S", 0.2)


@pytest.fixture
def config(services) -> Config:
    return services.config(rollout=QUICK)


def request(number: int, seconds: float = 3600.0, **fields) -> ActionRequest:
    asked = events.action_request(
        f"r{number}",
        trajectory_id=f"t{number}",
        step=2,
        turns=[
            MessagePart(role="user", text=f"Click the box at ({number % 160},120)."),
            MessagePart(role="user", image=BlobRef(sha256="5", size=1, width=160, height=210)),
        ],
        reply_partition=number % 4,
        deadline_ms=int((time.time() + seconds) * 1000),
    )
    return msgspec.structs.replace(asked, **fields)


def worker(
    config: Config, name: str = "rollout-0", engine: Any = None
) -> contextlib.AbstractAsyncContextManager[asyncio.Task[int]]:
    return running_worker(partial(connect, engine=engine or ScriptedEngine(config)), config, name)


@contextlib.asynccontextmanager
async def connected(
    config: Config, read: Topic, *announced: WeightVersion
) -> AsyncIterator[tuple[Publisher, TopicReader]]:
    """Announce versions; yield a publisher, and a reader of what workers write."""
    async with Publisher(config.bus, "test") as publisher, TopicReader(config, read) as reader:
        for version in announced:
            await publisher.publish(weights.TOPIC, version)
        yield publisher, reader


def answered(numbers: range) -> Callable[[list[ActionResponse]], bool]:
    wanted = {f"r{number}" for number in numbers}
    return lambda replies: {action.request_id for action in replies} >= wanted


async def ask(publisher: Publisher, *asked: ActionRequest) -> None:
    await asyncio.gather(*(publisher.publish(action_requests.TOPIC, event) for event in asked))


async def test_every_request_is_answered_once_where_it_wants_the_reply(config):
    async with connected(config, actions.TOPIC, weight_version(3)) as (publisher, replies), worker(config):
        began = time.monotonic()
        await ask(publisher, *map(request, range(60)))
        await replies.until(answered(range(60)))
        most_ms = (time.monotonic() - began) * 1000
    assert len(replies.records) == 60
    for record, action in zip(replies.records, replies.events, strict=True):
        number = int(action.request_id[1:])
        assert record.partition == number % 4
        assert (action.trajectory_id, action.step, action.error) == (f"t{number}", 2, None)
        assert action.text == f"Action: click(start_box='({number % 160},120)')"
        assert len(action.tokens) == len(action.logprobs) == len(action.entropies) > 0
        assert [segment.version for segment in action.versions] == [3]
        assert action.worker_id == "rollout-0"
        assert 0 <= action.queue_ms < most_ms
        assert 0 < action.generate_ms < most_ms


async def test_a_worker_that_is_there_first_waits_for_the_first_weights(config):
    async with connected(config, weights_serving.TOPIC) as (publisher, serving), worker(config):
        await publisher.publish(weights.TOPIC, weight_version(9, model_id="other"))
        await publisher.publish(weights.TOPIC, weight_version(0))
        first = await serving.until(lambda seen: seen and seen[0])
    assert (first.worker_id, first.version) == ("rollout-0", 0)


class Compared(ScriptedEngine):
    """Keeps the version that it was started with."""

    started: WeightVersion | None = None

    async def start(self, version: WeightVersion) -> None:
        self.started = version
        await super().start(version)


@pytest.mark.parametrize("trains", [True, False])
async def test_only_a_trainable_endpoint_starts_with_the_trainers_first_version(services, trains):
    """Any other has nothing to be compared with and waits for no version."""
    openai = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "trainable": trains}
    run = {"minutes": 9.0 if trains else 0.0}
    config = services.config(rollout={"engine": "openai", "openai": openai}, run=run)
    engine, announced = Compared(config), [weight_version(0)] if trains else []
    async with connected(config, weights_serving.TOPIC, *announced) as (_, serving), worker(config, engine=engine):
        await serving.until(bool)
    assert engine.started == (weight_version(0) if trains else main.FIXED)


async def test_a_worker_stopped_before_there_are_weights_ends_at_once(config):
    async with worker(config) as living:
        pass
    assert living.result() == 0


async def test_a_request_past_its_deadline_is_dropped_also_while_it_is_generated(services):
    config = services.config(rollout={**QUICK, "scripted": {"latency_ms": 400.0}})
    async with connected(config, actions.TOPIC, FIRST) as (publisher, replies), worker(config):
        await ask(publisher, request(0, seconds=-1.0), request(1, seconds=0.2), request(2))
        await replies.until(answered(range(2, 3)))
    assert [action.request_id for action in replies.events] == ["r2"]


async def test_what_cannot_be_answered_is_a_dead_letter_and_the_worker_goes_on(config):
    letters = TopicReader(config, action_requests.TOPIC, dead_letters.SUFFIX)
    async with connected(config, actions.TOPIC, FIRST) as (publisher, replies), letters, worker(config):
        await publisher.send(action_requests.TOPIC.name, b"bad", b"{", [])
        await ask(publisher, request(0, reply_partition=99), request(1))
        await replies.until(answered(range(1, 2)))
        dead = await letters.count(2)
    reasons = {letter.key: find_header(letter.headers, dead_letters.ERROR).decode() for letter in dead}
    assert "not a action-requests/1" in reasons[b"bad"]
    assert "reply_partition 99" in reasons[b"t0"]


async def test_a_reply_goes_to_a_partition_that_its_topic_was_given_since(config):
    grown = msgspec.structs.replace(config.bus, topics=TopicSettings(partitions=8))
    async with connected(config, actions.TOPIC, FIRST) as (publisher, replies), worker(config):
        await ask(publisher, request(0))
        await replies.until(answered(range(1)))
        changes = await asyncio.to_thread(admin.apply_all, grown)
        assert {change.action for change in changes} == {"add partitions"}
        async with TopicReader(config, actions.TOPIC) as later:
            await ask(publisher, request(1, reply_partition=6))
            await later.until(answered(range(1, 2)))
        assert [r.partition for r, reply in zip(later.records, later.events, strict=True) if reply.step == 2][-1] == 6
    assert await asyncio.to_thread(admin.apply_all, config.bus) == [], "shared topics keep what they have grown"


class Faulty(ScriptedEngine):
    """Refuses the listed requests and versions."""

    dead = False

    def __init__(self, config: Config, *, requests: Sequence[str] = (), versions: Sequence[int] = ()) -> None:
        super().__init__(config)
        self.bad_requests, self.bad_versions = set(requests), set(versions)

    async def generate(self, asked: ActionRequest) -> Generation:
        if asked.request_id in self.bad_requests:
            raise EngineFault("blob 17 is not in the store")
        return await super().generate(asked)

    async def start(self, announced: WeightVersion) -> None:
        if announced.version in self.bad_versions:
            raise LoadFault("sha256 is another")
        await super().start(announced)

    async def load(self, announced: WeightVersion) -> float:
        if announced.version in self.bad_versions:
            raise LoadFault("sha256 is another")
        return await super().load(announced)

    async def check(self) -> None:
        if self.dead:
            raise EngineDead("out of memory")


async def test_a_fault_of_the_engine_becomes_the_replys_error(config):
    engine = Faulty(config, requests=["r0"])
    async with connected(config, actions.TOPIC, FIRST) as (publisher, replies), worker(config, engine=engine):
        await ask(publisher, request(0), request(1))
        await replies.until(answered(range(2)))
    by_id = {action.request_id: action for action in replies.events}
    assert by_id["r0"].error == "blob 17 is not in the store"
    assert (by_id["r0"].text, by_id["r0"].tokens, by_id["r0"].versions) == ("", [], [])
    assert by_id["r1"].error is None


DELTA = weight_version(
    5,
    kind="delta",
    base=[WeightPart(version=3, uri="", sha256=""), WeightPart(version=4, uri="", sha256="", kind="delta")],
)


@pytest.mark.parametrize(
    ("before", "during", "damaged", "served", "mended"),
    [
        ([weight_version(0)], [weight_version(1)], [1], 0, []),
        ([DELTA], [], [5], 3, [weight_version(5)]),
        ([weight_version(number) for number in range(1, 7)], [], [3, 6], 5, []),
    ],
    ids=["the next version", "a first delta", "two of several versions"],
)
async def test_a_version_that_fails_to_load_is_announced_and_tried_again(
    config, before, during, damaged, served, mended
):
    """An older one is served meanwhile: without a rollout worker there is nothing to train on."""
    engine, newest = Faulty(config, versions=damaged), damaged[-1]
    async with connected(config, weights_serving.TOPIC, *before) as (publisher, serving), worker(config, engine=engine):
        first = await serving.until(lambda seen: seen and seen[0])
        assert (first.version, first.failed_version) == (served, None if during else newest)
        for version in during:
            await publisher.publish(weights.TOPIC, version)
        failed = await serving.until(lambda seen: next((r for r in seen if r.failed_version == newest), None))
        assert (failed.version, failed.error) == (served, "sha256 is another")
        engine.bad_versions.clear()
        for version in mended:
            await publisher.publish(weights.TOPIC, version)
        healed = await serving.until(lambda seen: next((r for r in seen if r.version == newest), None))
        assert (healed.failed_version, healed.error) == (None, None)


async def test_a_worker_whose_first_version_does_not_load_takes_the_next(config, monkeypatch):
    monkeypatch.setattr(main, "RETRY_INTERVAL_S", 30.0)
    engine = Faulty(config, versions=[0])
    async with connected(config, weights_serving.TOPIC, FIRST) as (publisher, serving), worker(config, engine=engine):
        await publisher.publish(weights.TOPIC, weight_version(1))
        first = await serving.until(lambda seen: seen and seen[0])
    assert first.version == 1


async def test_lower_versions_duplicates_and_fenced_trainers_are_ignored(config):
    announced = [weight_version(number, epoch=epoch) for number, epoch in ((4, 2), (9, 1), (3, 2), (4, 2))]
    async with connected(config, weights_serving.TOPIC, *announced) as (publisher, serving), worker(config):
        await serving.until(bool)
        await publisher.publish(weights.TOPIC, weight_version(10, epoch=1))
        await publisher.publish(weights.TOPIC, weight_version(5, epoch=2))
        await serving.until(lambda seen: any(record.version == 5 for record in seen))
    assert {record.version for record in serving.events} == {4, 5}


class Slow(ScriptedEngine):
    """Records which workers switch at the same time; a switch takes 0.1 s."""

    def __init__(self, config: Config, name: str, switching: list[set[str]]) -> None:
        super().__init__(config)
        self.name = name
        self.switching = switching

    async def load(self, announced: WeightVersion) -> float:
        under_way = self.switching[-1]
        self.switching.append(under_way | {self.name})
        await asyncio.sleep(0.1)
        self.switching.append(self.switching[-1] - {self.name})
        return await super().load(announced)


async def test_three_workers_switch_one_after_the_other(config):
    switching: list[set[str]] = [set()]
    first, second, third = (
        worker(config, name, Slow(config, name, switching)) for name in ("rollout-0", "rollout-1", "rollout-2")
    )
    async with connected(config, weights_serving.TOPIC, FIRST) as (publisher, serving), first, second, third:
        await serving.until(lambda seen: len({r.worker_id for r in seen}) == 3)
        for number in (1, 2):
            await publisher.publish(weights.TOPIC, weight_version(number))
            at = {(f"rollout-{n}", number) for n in range(3)}
            await serving.until(lambda seen, at=at: {(r.worker_id, r.version) for r in seen} >= at)
    assert max(map(len, switching)) == 1
    assert [names for names in switching if names][:3] == [{"rollout-0"}, {"rollout-1"}, {"rollout-2"}]


async def test_no_more_than_max_in_flight_requests_are_under_way(services):
    config = services.config(rollout={**QUICK, "max_in_flight": 3, "scripted": {"latency_ms": 20.0}})
    under_way: list[int] = [0]

    class Counting(ScriptedEngine):
        async def generate(self, asked: ActionRequest) -> Generation:
            under_way.append(under_way[-1] + 1)
            try:
                return await super().generate(asked)
            finally:
                under_way.append(under_way[-1] - 1)

    async with connected(config, actions.TOPIC, FIRST) as (publisher, replies):
        await ask(publisher, *map(request, range(40)))
        async with worker(config, engine=Counting(config)):
            await replies.until(answered(range(40)))
    assert max(under_way) == 3
    waited = max(replies.events, key=lambda action: action.queue_ms)
    # One that is taken with three others waits for the first of them, a generation of 20 ms, at least.
    assert waited.queue_ms > 15, "a request that waits for room says so"


class Watched(ScriptedEngine):
    """Sets ``reached`` when ``wanted`` requests are under way."""

    def __init__(self, config: Config, wanted: int) -> None:
        super().__init__(config)
        self.wanted = wanted
        self.reached = asyncio.Event()

    async def generate(self, asked: ActionRequest) -> Generation:
        self.wanted -= 1
        if self.wanted == 0:
            self.reached.set()
        return await super().generate(asked)


async def test_a_stopped_worker_answers_what_it_has_taken(services):
    config = services.config(rollout={**QUICK, "scripted": {"latency_ms": 500.0}}, run={"drain_s": 60.0})
    engine = Watched(config, 8)
    async with connected(config, actions.TOPIC, FIRST) as (publisher, replies):
        async with worker(config, engine=engine), asyncio.timeout(BOUND_S):
            await ask(publisher, *map(request, range(8)))
            await engine.reached.wait()
        await replies.until(answered(range(8)))


async def test_requests_a_worker_did_not_live_to_answer_are_answered_by_the_next(services):
    config = services.config(rollout={**QUICK, "scripted": {"latency_ms": 60_000.0}}, run={"drain_s": 0.2})
    engine = Watched(config, 8)
    async with connected(config, actions.TOPIC, FIRST) as (publisher, replies):
        async with worker(config, engine=engine), asyncio.timeout(BOUND_S):
            await ask(publisher, *map(request, range(8)))
            await engine.reached.wait()
        async with worker(config, "rollout-1", ScriptedEngine(services.config(rollout=QUICK))):
            await replies.until(answered(range(8)))
    assert {action.worker_id for action in replies.events} == {"rollout-1"}


async def test_an_engine_that_has_died_ends_the_worker_with_its_error(config):
    engine = Faulty(config)
    async with connected(config, weights_serving.TOPIC, FIRST) as (_, serving):
        living = asyncio.create_task(
            run_until_stopped(partial(connect, engine=engine), config, "rollout-0", asyncio.Event())
        )
        await serving.until(bool)
        engine.dead = True
        with pytest.raises(EngineDead, match="out of memory"):
            async with asyncio.timeout(BOUND_S):
                await living


async def test_a_signal_to_stop_ends_the_process_with_0(config, tmp_path):
    async with connected(config, weights_serving.TOPIC, FIRST) as (_, serving):
        with worker_process("rollout", config, tmp_path) as running:
            await serving.until(bool)
            running.send_signal(signal.SIGTERM)
            assert await exit_code_of(running) == 0
