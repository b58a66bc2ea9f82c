"""The rollout worker with the scripted engine on a real broker."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from dart_streams.bus import dead_letters
from dart_streams.bus.clients import Publisher
from dart_streams.bus.codec import find_header
from dart_streams.config import Config, Rollout
from tests import events
from tests.events import weight_version
from tests.topic_reader import TopicReader
from tests.worker_runs import BOUND_S, exit_code_of, running_worker, worker_process
from topics import action_requests, actions, weights, weights_serving
from topics.action_requests import ActionRequest
from topics.actions import ActionResponse
from topics.values import BlobRef, MessagePart, Sampling
from topics.weights import WeightPart, WeightVersion
from workers.rollout import main, weight_updater
from workers.rollout.engine import EngineDead, EngineFault, Generation, LoadFault
from workers.rollout.main import connect
from workers.rollout.scripted import ScriptedEngine
from workers.runtime.lifecycle import run_until_stopped

QUICK = {"engine": "scripted", "scripted": {"success_rate": 1.0}}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Workers beat often, and try weights again soon."""
    monkeypatch.setattr(Rollout, "heartbeat_s", 0.1)
    monkeypatch.setattr(weight_updater, "RETRY_INTERVAL_S", 0.2)


def request(number: int, seconds: float = 3600.0, **fields) -> ActionRequest:
    asked = events.action_request(
        f"r{number}",
        trajectory_id=f"t{number}",
        step=2,
        turns=[
            MessagePart(role="user", text=f"Click the box at ({number % 160},120)."),
            MessagePart(role="user", image=BlobRef(sha256="s", size=1, width=160, height=210)),
        ],
        reply_partition=number % 4,
        deadline_ms=int((time.time() + seconds) * 1000),
    )
    return msgspec.structs.replace(asked, **fields)


def worker(
    config: Config, name: str = "rollout-0", engine: Any = None
) -> contextlib.AbstractAsyncContextManager[asyncio.Task[int]]:
    return running_worker(partial(connect, engine=engine or ScriptedEngine(config)), config, name)


def answered(numbers: range) -> Callable[[list[ActionResponse]], bool]:
    wanted = {f"r{number}" for number in numbers}
    return lambda found: {action.request_id for action in found} >= wanted


async def ask(publisher: Publisher, *asked: ActionRequest) -> None:
    await asyncio.gather(*(publisher.publish(action_requests.TOPIC, one) for one in asked))


async def test_every_request_is_answered_once_where_it_wants_the_reply(services):
    config = services.config(rollout=QUICK)
    async with Publisher(config.bus, "test") as publisher, TopicReader(config, actions.TOPIC) as replies:
        await publisher.publish(weights.TOPIC, weight_version(3))
        async with worker(config):
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


async def test_a_worker_that_is_there_first_waits_for_the_first_weights(services):
    config = services.config(rollout=QUICK)
    reader = TopicReader(config, weights_serving.TOPIC)
    async with Publisher(config.bus, "test") as publisher, reader as serving, worker(config):
        await publisher.publish(weights.TOPIC, msgspec.structs.replace(weight_version(9), model_id="other"))
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
    engine, reader = Compared(config), TopicReader(config, weights_serving.TOPIC)
    async with Publisher(config.bus, "test") as publisher, reader as serving, worker(config, engine=engine):
        if trains:
            await publisher.publish(weights.TOPIC, weight_version(0))
        await serving.until(lambda seen: seen and seen[0])
    assert engine.started == (weight_version(0) if trains else main.FIXED)


async def test_a_worker_stopped_before_there_are_weights_ends_at_once(services):
    config = services.config(rollout=QUICK)
    async with worker(config) as living:
        pass
    assert living.result() == 0


async def test_a_request_past_its_deadline_is_dropped_also_while_it_is_generated(services):
    config = services.config(rollout={**QUICK, "scripted": {"latency_ms": 400.0}})
    async with Publisher(config.bus, "test") as publisher, TopicReader(config, actions.TOPIC) as replies:
        await publisher.publish(weights.TOPIC, weight_version(0))
        async with worker(config):
            await ask(publisher, request(0, seconds=-1.0), request(1, seconds=0.2), request(2))
            await replies.until(answered(range(2, 3)))
    assert [action.request_id for action in replies.events] == ["r2"]


async def test_what_cannot_be_answered_is_a_dead_letter_and_the_worker_goes_on(services):
    config = services.config(rollout=QUICK)
    letters = TopicReader(config, action_requests.TOPIC, dead_letters.SUFFIX)
    async with Publisher(config.bus, "test") as publisher, TopicReader(config, actions.TOPIC) as replies, letters:
        await publisher.publish(weights.TOPIC, weight_version(0))
        async with worker(config):
            await publisher.send(action_requests.TOPIC.name, b"bad", b"{", [])
            await ask(publisher, request(0, reply_partition=99), request(1))
            await replies.until(answered(range(1, 2)))
            dead = await letters.count(2)
    reasons = {letter.key: find_header(letter.headers, dead_letters.ERROR).decode() for letter in dead}
    assert "not a action-requests/1" in reasons[b"bad"]
    assert "reply_partition 99" in reasons[b"t0"]


class Faulty(ScriptedEngine):
    """Refuses the listed requests and versions."""

    bad_requests: frozenset[str] = frozenset()
    bad_loads: frozenset[int] = frozenset()
    dead = False

    async def generate(self, asked: ActionRequest) -> Generation:
        if asked.request_id in self.bad_requests:
            raise EngineFault("blob 17 is not in the store")
        return await super().generate(asked)

    async def start(self, announced: WeightVersion) -> None:
        if announced.version in self.bad_loads:
            raise LoadFault("sha256 is another")
        await super().start(announced)

    async def load(self, announced: WeightVersion) -> float:
        if announced.version in self.bad_loads:
            raise LoadFault("sha256 is another")
        return await super().load(announced)

    async def check(self) -> None:
        if self.dead:
            raise EngineDead("out of memory")


async def test_a_fault_of_the_engine_becomes_the_replys_error(services):
    config = services.config(rollout=QUICK)
    engine = Faulty(config)
    engine.bad_requests = frozenset({"r0"})
    async with Publisher(config.bus, "test") as publisher, TopicReader(config, actions.TOPIC) as replies:
        await publisher.publish(weights.TOPIC, weight_version(0))
        async with worker(config, engine=engine):
            await ask(publisher, request(0), request(1))
            await replies.until(answered(range(2)))
    by_id = {action.request_id: action for action in replies.events}
    assert by_id["r0"].error == "blob 17 is not in the store"
    assert (by_id["r0"].text, by_id["r0"].tokens, by_id["r0"].versions) == ("", [], [])
    assert by_id["r1"].error is None


class Talkative(ScriptedEngine):
    """Answers with as many characters and tokens as the request's sampling says."""

    async def generate(self, request: ActionRequest) -> Generation:
        answer, count = await super().generate(request), request.sampling.max_tokens
        worst = [-1.2345678901234567e-05] * min(count, 32_768)
        return msgspec.structs.replace(
            answer, text="\x01" * (count // 2), tokens=[151_643] * len(worst), logprobs=worst, entropies=worst
        )


async def test_an_answer_too_large_for_a_record_becomes_an_error(services):
    config = services.config(rollout=QUICK)
    asked = [request(number, sampling=Sampling(max_tokens=count)) for number, count in enumerate((32_768, 2**21, 8))]
    async with Publisher(config.bus, "test") as publisher, TopicReader(config, actions.TOPIC) as replies:
        await publisher.publish(weights.TOPIC, weight_version(0))
        async with worker(config, engine=Talkative(config)):
            await ask(publisher, *asked)
            await replies.until(answered(range(3)))
            await ask(publisher, request(3, reply_partition=1))
            await replies.until(answered(range(4)))
    by_id = {action.request_id: action for action in replies.events}
    assert [by_id[f"r{number}"].error is None for number in range(4)] == [True, False, True, True]
    assert len(by_id["r0"].tokens) == 32_768
    assert "an event of actions cannot be published: the value takes" in by_id["r1"].error
    assert (by_id["r1"].text, by_id["r1"].tokens, by_id["r1"].versions) == ("", [], [])


async def test_a_version_that_fails_to_load_is_announced_and_tried_again(services):
    config = services.config(rollout=QUICK)
    engine = Faulty(config)
    engine.bad_loads = frozenset({1})
    async with Publisher(config.bus, "test") as publisher, TopicReader(config, weights_serving.TOPIC) as serving:
        await publisher.publish(weights.TOPIC, weight_version(0))
        async with worker(config, engine=engine):
            await serving.until(bool)
            await publisher.publish(weights.TOPIC, weight_version(1))
            failed = await serving.until(lambda seen: next((r for r in seen if r.failed_version == 1), None))
            assert (failed.version, failed.error) == (0, "sha256 is another")
            engine.bad_loads = frozenset()
            healed = await serving.until(lambda seen: next((r for r in seen if r.version == 1), None))
            assert (healed.failed_version, healed.error) == (None, None)


async def test_a_worker_whose_first_version_does_not_load_takes_the_next(services, monkeypatch):
    monkeypatch.setattr(main, "RETRY_INTERVAL_S", 30.0)
    config = services.config(rollout=QUICK)
    engine = Faulty(config)
    engine.bad_loads = frozenset({0})
    async with Publisher(config.bus, "test") as publisher, TopicReader(config, weights_serving.TOPIC) as serving:
        await publisher.publish(weights.TOPIC, weight_version(0))
        async with worker(config, engine=engine):
            await publisher.publish(weights.TOPIC, weight_version(1))
            first = await serving.until(lambda seen: seen and seen[0])
    assert first.version == 1


async def test_a_worker_whose_first_delta_fails_serves_the_full_version_before(services, monkeypatch):
    monkeypatch.setattr(weight_updater, "RETRY_INTERVAL_S", 0.1)
    config = services.config(rollout=QUICK)
    engine = Faulty(config)
    engine.bad_loads = frozenset({5})
    base = [WeightPart(version=3, uri="", sha256=""), WeightPart(version=4, uri="", sha256="", kind="delta")]
    newest = msgspec.structs.replace(weight_version(5), kind="delta", base=base)
    async with Publisher(config.bus, "test") as publisher, TopicReader(config, weights_serving.TOPIC) as serving:
        await publisher.publish(weights.TOPIC, newest)
        async with worker(config, engine=engine):
            first = await serving.until(lambda seen: seen and seen[0])
            assert (first.version, first.failed_version, first.error) == (3, 5, "sha256 is another")
            engine.bad_loads = frozenset()
            await publisher.publish(weights.TOPIC, weight_version(5))
            healed = await serving.until(lambda seen: next((r for r in seen if r.version == 5), None))
            assert (healed.failed_version, healed.error) == (None, None)


async def test_a_worker_serves_an_older_version_while_the_newest_is_damaged(services):
    """Otherwise no version would follow: without a rollout worker there is nothing to train on."""
    config = services.config(rollout=QUICK)
    engine = Faulty(config)
    engine.bad_loads = frozenset({3, 6})
    async with Publisher(config.bus, "test") as publisher, TopicReader(config, weights_serving.TOPIC) as serving:
        for number in (1, 2, 3, 4, 5, 6):
            await publisher.publish(weights.TOPIC, weight_version(number))
        async with worker(config, engine=engine):
            first = await serving.until(lambda seen: seen and seen[0])
            assert (first.version, first.failed_version, first.error) == (5, 6, "sha256 is another")
            engine.bad_loads = frozenset()
            healed = await serving.until(lambda seen: next((r for r in seen if r.version == 6), None))
            assert (healed.failed_version, healed.error) == (None, None)


async def test_lower_versions_duplicates_and_fenced_trainers_are_ignored(services):
    config = services.config(rollout=QUICK)
    async with Publisher(config.bus, "test") as publisher, TopicReader(config, weights_serving.TOPIC) as serving:
        for announced in (
            weight_version(4, epoch=2),
            weight_version(9, epoch=1),
            weight_version(3, epoch=2),
            weight_version(4, epoch=2),
        ):
            await publisher.publish(weights.TOPIC, announced)
        async with worker(config):
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


async def test_three_workers_switch_one_after_the_other(services):
    config = services.config(rollout=QUICK)
    switching: list[set[str]] = [set()]
    async with Publisher(config.bus, "test") as publisher, TopicReader(config, weights_serving.TOPIC) as serving:
        await publisher.publish(weights.TOPIC, weight_version(0))
        async with contextlib.AsyncExitStack() as fleet:
            for name in ("rollout-0", "rollout-1", "rollout-2"):
                await fleet.enter_async_context(worker(config, name, Slow(config, name, switching)))
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

    async with Publisher(config.bus, "test") as publisher, TopicReader(config, actions.TOPIC) as replies:
        await publisher.publish(weights.TOPIC, weight_version(0))
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
    config = services.config(rollout={**QUICK, "scripted": {"latency_ms": 500.0}})
    engine = Watched(config, 8)
    async with Publisher(config.bus, "test") as publisher, TopicReader(config, actions.TOPIC) as replies:
        await publisher.publish(weights.TOPIC, weight_version(0))
        async with worker(config, engine=engine), asyncio.timeout(BOUND_S):
            await ask(publisher, *map(request, range(8)))
            await engine.reached.wait()
        await replies.until(answered(range(8)))


async def test_requests_a_worker_did_not_live_to_answer_are_answered_by_the_next(services):
    config = services.config(rollout={**QUICK, "scripted": {"latency_ms": 60_000.0}}, run={"drain_s": 0.2})
    engine = Watched(config, 8)
    async with Publisher(config.bus, "test") as publisher, TopicReader(config, actions.TOPIC) as replies:
        await publisher.publish(weights.TOPIC, weight_version(0))
        async with worker(config, engine=engine), asyncio.timeout(BOUND_S):
            await ask(publisher, *map(request, range(8)))
            await engine.reached.wait()
        async with worker(config, "rollout-1", ScriptedEngine(services.config(rollout=QUICK))):
            await replies.until(answered(range(8)))
    assert {action.worker_id for action in replies.events} == {"rollout-1"}


async def test_an_engine_that_has_died_ends_the_worker_with_its_error(services):
    config = services.config(rollout=QUICK)
    engine = Faulty(config)
    async with Publisher(config.bus, "test") as publisher, TopicReader(config, weights_serving.TOPIC) as serving:
        await publisher.publish(weights.TOPIC, weight_version(0))
        living = asyncio.create_task(
            run_until_stopped(partial(connect, engine=engine), config, "rollout-0", asyncio.Event())
        )
        await serving.until(bool)
        engine.dead = True
        with pytest.raises(EngineDead, match="out of memory"):
            async with asyncio.timeout(BOUND_S):
                await living


async def test_a_signal_to_stop_ends_the_process_with_0(services, tmp_path):
    config = services.config(rollout=QUICK)
    async with Publisher(config.bus, "test") as publisher, TopicReader(config, weights_serving.TOPIC) as serving:
        await publisher.publish(weights.TOPIC, weight_version(0))
        with worker_process("rollout", config, tmp_path) as running:
            await serving.until(bool)
            running.send_signal(signal.SIGTERM)
            assert await exit_code_of(running) == 0
