"""The recorder on a real broker and database."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec
import pytest

from dart_streams.bus import dead_letters
from dart_streams.bus.clients import Publisher, event_of
from dart_streams.bus.codec import find_header
from dart_streams.config import Config
from dart_streams.store import AsyncStore, connect
from tests import events
from tests.stored_rows import trajectories_in
from tests.topic_reader import TopicReader, read_dead_letters
from tests.worker_runs import running_worker, throw_out, worker_process
from topics import observations, trajectories
from topics.observations import Observation
from topics.trajectories import Trajectory
from workers.recorder.main import connect as connect_worker


@pytest.fixture
def config(services) -> Config:
    return services.config()


async def publish(publisher: Publisher, *played: Observation) -> None:
    """Publish all at once; the client keeps their order."""
    await asyncio.gather(*(publisher.publish(observations.TOPIC, observation) for observation in played))


def recorder(config: Config, name: str = "recorder-0") -> contextlib.AbstractAsyncContextManager[asyncio.Task[int]]:
    return running_worker(connect_worker, config, name)


async def announced(config: Config, enough: Callable[[list[Trajectory]], bool]) -> list[Trajectory]:
    async with TopicReader(config, trajectories.TOPIC) as reader:
        await reader.until(enough)
        return reader.events


def all_of(numbers: Sequence[int]) -> Callable[[list[Trajectory]], bool]:
    wanted = {f"t{number}" for number in numbers}
    return lambda announced: {trajectory.trajectory_id for trajectory in announced} >= wanted


@contextlib.asynccontextmanager
async def store_of(config: Config) -> AsyncIterator[AsyncStore]:
    session = connect(config.store)
    try:
        yield AsyncStore(session, config.bus.run, 0)
    finally:
        session.cluster.shutdown()


async def test_a_trajectory_is_announced_when_it_is_in_the_store(config):
    async with Publisher(config.bus, "test") as publisher, store_of(config) as store, recorder(config):
        played = {number: events.episode(number) for number in range(20)}
        await publish(publisher, *(observation for number in played for observation in played[number]))
        finished = await announced(config, all_of(range(20)))
        for trajectory in finished:
            number = int(trajectory.trajectory_id[1:])
            assert await store.steps(trajectory.trajectory_id) == played[number]
            assert trajectories_in(store, "trajectories", "id", trajectory.trajectory_id) == [trajectory]
    first = next(trajectory for trajectory in finished if trajectory.trajectory_id == "t1")
    assert (first.steps, first.version_min, first.version_max) == (3, 1, 3)
    assert first.step_entropies == pytest.approx([0.3] * 3)
    assert (first.started_ms, first.finished_ms) == (1000, 1003)


async def test_duplicates_of_every_observation_give_the_same_trajectories(config):
    async with Publisher(config.bus, "test") as publisher, store_of(config) as store:
        played = [observation for number in range(10) for observation in events.episode(number)]
        async with recorder(config):
            await publish(publisher, *played)
            once = await announced(config, all_of(range(10)))
            await publish(publisher, *played, *events.episode(99))
            finished = await announced(config, all_of([99]))
        assert await store.steps("t3") == events.episode(3)
    distinct = {msgspec.json.encode(trajectory) for trajectory in finished if trajectory.trajectory_id != "t99"}
    assert distinct == {msgspec.json.encode(trajectory) for trajectory in once}


async def test_a_record_that_is_no_observation_is_a_dead_letter(config):
    name = observations.TOPIC.name
    async with Publisher(config.bus, "test") as publisher, recorder(config):
        await publisher.send(name, b"bad", b"\xff\x00", [("schema", b"observations/1")])
        await publisher.send(name, b"newer", b"{}", [("schema", b"observations/99")])
        await publisher.send(name, b"none", None, [])
        await publish(publisher, *events.episode(1))
        finished = await announced(config, all_of([1]))
        letters = await read_dead_letters(config, observations.TOPIC, 3)
    assert {trajectory.trajectory_id for trajectory in finished} == {"t1"}
    reasons = {letter.key: find_header(letter.headers, dead_letters.ERROR).decode() for letter in letters}
    assert "not a observations/1" in reasons[b"bad"]
    assert "newer than this program" in reasons[b"newer"]
    assert "no value" in reasons[b"none"]
    bad = next(letter for letter in letters if letter.key == b"bad")
    assert (bad.value, find_header(bad.headers, "schema")) == (b"\xff\x00", b"observations/1")
    assert find_header(bad.headers, dead_letters.TOPIC).decode() == config.bus.prefix + name
    assert find_header(bad.headers, dead_letters.OFFSET) == b"0"


async def test_a_trajectory_with_a_missing_step_is_an_environment_error(config):
    async with Publisher(config.bus, "test") as publisher, recorder(config):
        whole = events.episode(7)
        await publish(publisher, *whole[:1], *whole[2:])
        [trajectory] = await announced(config, all_of([7]))
        [letter] = await read_dead_letters(config, observations.TOPIC, 1)
    assert (trajectory.outcome, trajectory.reward, trajectory.order_id) == ("env_error", None, "o7")
    assert b"steps [1] of 0..3" in find_header(letter.headers, dead_letters.ERROR)
    assert event_of(observations.TOPIC, letter) == whole[-1]


async def test_a_cancelled_episode_is_stored_but_not_announced(config):
    async with Publisher(config.bus, "test") as publisher, store_of(config) as store:
        async with recorder(config):
            for observation in [*events.episode(1, kind="cancelled"), *events.episode(2)]:
                await publisher.publish(observations.TOPIC, observation, partition=0)
            finished = await announced(config, all_of([2]))
        [stored] = trajectories_in(store, "trajectories", "id", "t1")
    assert {trajectory.trajectory_id for trajectory in finished} == {"t2"}
    assert stored.outcome == "cancelled"


async def test_the_next_recorder_goes_on_after_a_killed_one_without_a_loss(config, tmp_path):
    numbers = range(300)
    async with Publisher(config.bus, "test") as publisher, store_of(config) as store:
        await publish(publisher, *(observation for number in numbers for observation in events.episode(number)))
        with worker_process("recorder", config, tmp_path) as first:
            await announced(config, bool)
            first.kill()
        await asyncio.to_thread(throw_out, config, "recorder", "recorder-0")
        async with recorder(config, "recorder-1"):
            finished = await announced(config, all_of(numbers))
        for number in (0, 150, 299):
            assert await store.steps(f"t{number}") == events.episode(number)
    assert len({msgspec.json.encode(trajectory) for trajectory in finished}) == len(numbers)
