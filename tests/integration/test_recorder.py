"""The recorder on a real broker and database."""

import asyncio
import contextlib
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from aiokafka import TopicPartition

from dart_streams.bus import dead_letters
from dart_streams.bus.clients import Publisher, create_consumer, event_of, start_within
from dart_streams.bus.codec import find_header
from dart_streams.config import Config
from dart_streams.console.launch.services.daemon import free_port
from dart_streams.console.runs.run_folder import write_toml
from dart_streams.store import AsyncStore, connect
from tests import events
from topics import observations, trajectories
from topics.observations import EpisodeEnd, ExecutedAction, Observation
from topics.trajectories import Trajectory
from topics.values import OutcomeKind, VersionSpan
from workers.recorder.main import connect as connect_worker
from workers.runtime.lifecycle import run_until_stopped

BOUND_S = 120.0


def episode(number: int, steps: int = 3, kind: OutcomeKind = "success") -> list[Observation]:
    """The observations of one trajectory, as an environment worker tells them."""
    order = events.rollout_order(f"o{number}", task_id=f"simulated/box#{number % 5}")
    reward = 1.0 if kind == "success" else None
    return [
        events.observation(
            step,
            trajectory_id=f"t{number}",
            order=order,
            taken=answer(number, step) if step else None,
            end=EpisodeEnd(kind=kind, reward=reward) if step == steps else None,
            at_ms=1000 * number + step,
        )
        for step in range(steps + 1)
    ]


def answer(number: int, step: int) -> ExecutedAction:
    return events.executed_action(
        "Action: wait()",
        request_id=f"t{number}/{step - 1}/0",
        tokens=[1, 2],
        logprobs=[-0.1, -0.2],
        entropies=[0.2, 0.4],
        versions=[VersionSpan(version=step, start=0, end=2)],
    )


async def tell(publisher: Publisher, *told: Observation) -> None:
    """Publish all at once; the client keeps their order."""
    await asyncio.gather(*(publisher.publish(observations.TOPIC, observation) for observation in told))


@contextlib.asynccontextmanager
async def recorder(config: Config, name: str = "recorder-0") -> AsyncIterator[None]:
    stop = asyncio.Event()
    living = asyncio.create_task(run_until_stopped(connect_worker, config, name, stop))
    try:
        yield
    finally:
        stop.set()
        async with asyncio.timeout(BOUND_S):
            assert await living == 0


async def announced(config: Config, enough: Callable[[list[Trajectory]], bool]) -> list[Trajectory]:
    """Return what is on ``trajectories`` once there is enough."""
    found: list[Trajectory] = []
    records = create_consumer(config.bus, trajectories.TOPIC, group=uuid.uuid4().hex, client_id="reader")
    await start_within(records, config.bus)
    try:
        async with asyncio.timeout(BOUND_S):
            while not enough(found):
                found.append(event_of(trajectories.TOPIC, await records.getone()))
    finally:
        await records.stop()
    return found


def all_of(numbers: Sequence[int]) -> Callable[[list[Trajectory]], bool]:
    wanted = {f"t{number}" for number in numbers}
    return lambda found: {trajectory.trajectory_id for trajectory in found} >= wanted


async def read_dead_letters(config: Config, count: int) -> list:
    records = create_consumer(config.bus, group=None, client_id="letters")
    await start_within(records, config.bus)
    try:
        records.assign([TopicPartition(config.bus.prefix + observations.TOPIC.name + dead_letters.SUFFIX, 0)])
        await records.seek_to_beginning()
        async with asyncio.timeout(BOUND_S):
            return [await records.getone() for _ in range(count)]
    finally:
        await records.stop()


@contextlib.asynccontextmanager
async def store_of(config: Config) -> AsyncIterator[AsyncStore]:
    session = connect(config.store)
    try:
        yield AsyncStore(session, config.bus.run, 0)
    finally:
        session.cluster.shutdown()


async def test_a_trajectory_is_announced_when_its_steps_and_its_summary_are_in_the_store(services):
    config = services.config()
    async with Publisher(config.bus, "test") as publisher, store_of(config) as store, recorder(config):
        told = {number: episode(number) for number in range(20)}
        await tell(publisher, *(observation for number in told for observation in told[number]))
        found = await announced(config, all_of(range(20)))
        for trajectory in found:
            number = int(trajectory.trajectory_id[1:])
            assert await store.steps(trajectory.trajectory_id) == told[number]
            assert await store.trajectory(trajectory.trajectory_id) == trajectory
    assert len(found) == 20
    first = next(trajectory for trajectory in found if trajectory.trajectory_id == "t1")
    assert (first.steps, first.version_min, first.version_max) == (3, 1, 3)
    assert first.step_entropies == pytest.approx([0.3] * 3)
    assert (first.started_ms, first.finished_ms) == (1000, 1003)


async def test_duplicates_of_every_observation_give_the_same_trajectories(services):
    config = services.config()
    async with Publisher(config.bus, "test") as publisher, store_of(config) as store:
        told = [observation for number in range(10) for observation in episode(number)]
        async with recorder(config):
            await tell(publisher, *told)
            once = await announced(config, all_of(range(10)))
            await tell(publisher, *told, *episode(99))
            found = await announced(config, all_of([99]))
        assert await store.steps("t3") == episode(3)
    distinct = {msgspec.json.encode(trajectory) for trajectory in found if trajectory.trajectory_id != "t99"}
    assert distinct == {msgspec.json.encode(trajectory) for trajectory in once}


async def test_a_record_that_is_no_observation_is_a_dead_letter_and_the_recorder_goes_on(services):
    config = services.config()
    name = observations.TOPIC.name
    async with Publisher(config.bus, "test") as publisher, recorder(config):
        await publisher.send(name, b"bad", b"\xff\x00", [("schema", b"observations/1")])
        await publisher.send(name, b"newer", b"{}", [("schema", b"observations/99")])
        await publisher.send(name, b"none", None, [])
        await tell(publisher, *episode(1))
        found = await announced(config, all_of([1]))
        letters = await read_dead_letters(config, 3)
    assert len(found) == 1
    reasons = {letter.key: find_header(letter.headers, dead_letters.ERROR).decode() for letter in letters}
    assert "not a observations/1" in reasons[b"bad"]
    assert "newer than this program" in reasons[b"newer"]
    assert "no value" in reasons[b"none"]
    bad = next(letter for letter in letters if letter.key == b"bad")
    assert (bad.value, find_header(bad.headers, "schema")) == (b"\xff\x00", b"observations/1")
    assert find_header(bad.headers, dead_letters.TOPIC).decode() == config.bus.prefix + name
    assert find_header(bad.headers, dead_letters.OFFSET) == b"0"


async def test_a_trajectory_with_a_missing_step_is_an_error_of_the_environment_never_a_made_up_reward(services):
    config = services.config()
    async with Publisher(config.bus, "test") as publisher, recorder(config):
        whole = episode(7)
        await tell(publisher, *whole[:1], *whole[2:])
        [trajectory] = await announced(config, all_of([7]))
        [letter] = await read_dead_letters(config, 1)
    assert (trajectory.outcome, trajectory.reward, trajectory.order_id) == ("env_error", None, "o7")
    assert b"steps [1] of 0..3" in find_header(letter.headers, dead_letters.ERROR)
    assert event_of(observations.TOPIC, letter) == whole[-1]


async def test_a_cancelled_episode_is_stored_but_not_announced_for_its_order_comes_again(services):
    config = services.config()
    async with Publisher(config.bus, "test") as publisher, store_of(config) as store:
        async with recorder(config):
            for observation in [*episode(1, kind="cancelled"), *episode(2)]:
                await publisher.publish(observations.TOPIC, observation, partition=0)
            found = await announced(config, all_of([2]))
        stored = await store.trajectory("t1")
    assert [trajectory.trajectory_id for trajectory in found] == ["t2"]
    assert stored is not None
    assert stored.outcome == "cancelled"


async def test_a_recorder_that_is_killed_in_its_backlog_is_continued_by_the_next_without_a_loss(services, tmp_path):
    config = services.config()
    numbers = range(300)
    async with Publisher(config.bus, "test") as publisher, store_of(config) as store:
        await tell(publisher, *(observation for number in numbers for observation in episode(number)))
        with process(config, tmp_path) as first:
            await announced(config, lambda found: len(found) >= 1)
            first.kill()
        async with recorder(config, "recorder-1"):
            found = await announced(config, all_of(numbers))
        for number in (0, 150, 299):
            assert await store.steps(f"t{number}") == episode(number)
    assert len({msgspec.json.encode(trajectory) for trajectory in found}) == len(numbers)


@contextlib.contextmanager
def process(config: Config, folder: Path, name: str = "recorder-0"):
    """A recorder as a process of its own; killed at the end if it is still there."""
    file = folder / f"{name}.toml"
    write_toml(file, config)
    command = [str(Path(sys.executable).parent / "dart-streams"), "worker", "recorder", "--config", str(file)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


WAIT_S = 5.0
"""More than one try takes on a busy machine: it is after a first failure that a process says what it waits for."""


@pytest.mark.parametrize("service", ["broker", "database"])
def test_a_service_that_is_not_up_is_waited_for_and_then_named(services, tmp_path, service):
    config = services.config()
    replace, nowhere = msgspec.structs.replace, free_port()
    if service == "broker":
        config = replace(config, bus=replace(config.bus, servers=f"127.0.0.1:{nowhere}", wait_s=WAIT_S))
    else:
        config = replace(config, store=replace(config.store, port=nowhere, wait_s=WAIT_S))
    with process(config, tmp_path) as running:
        _, errors = running.communicate(timeout=BOUND_S)
    assert running.returncode == 3
    assert f"waiting for the {service}" in errors
    assert f"{nowhere}" in errors
    assert "Traceback" not in errors
