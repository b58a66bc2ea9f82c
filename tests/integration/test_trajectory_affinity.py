"""Five rollout workers, each with a partition: a trajectory stays with the worker whose caches have its prompts."""

import asyncio
import contextlib
from collections import Counter

import pytest

from dart_streams.bus.clients import Publisher, partition_of
from dart_streams.config import Config
from tests.events import weight_version
from tests.integration.test_rollout_worker import QUICK, answered, ask, connected, quick, request, worker
from tests.topic_reader import TopicReader
from tests.worker_runs import BOUND_S, throw_out, worker_process
from topics import actions

TRAJECTORIES = 24
WORKERS = 5

__all__ = ["quick"]


@pytest.fixture
def config(services) -> Config:
    return services.config(rollout=QUICK, bus={"topics": {"partitions": WORKERS}})


class Rounds:
    """Steps of all trajectories at once."""

    def __init__(self, publisher: Publisher, replies: TopicReader) -> None:
        self.publisher = publisher
        self.replies = replies
        self.asked = 0

    async def play(self) -> dict[str, str]:
        """Ask for a step of each trajectory; return the workers that answered."""
        numbers = range(self.asked, self.asked + TRAJECTORIES)
        self.asked += TRAJECTORIES
        await ask(self.publisher, *(request(number, trajectory_id=f"t{number % TRAJECTORIES}") for number in numbers))
        await self.replies.until(answered(numbers))
        wanted = {f"r{number}" for number in numbers}
        return {each.trajectory_id: each.worker_id for each in self.replies.events if each.request_id in wanted}

    async def settle(self, workers: int) -> dict[str, str]:
        """Play until this number of workers answers, twice the same."""
        async with asyncio.timeout(BOUND_S):
            before = await self.play()
            while len(set(before.values())) != workers or before != (after := await self.play()):
                before = await self.play()
            return after


async def test_a_trajectory_stays_with_its_worker_while_none_comes_or_goes(config):
    async with connected(config, actions.TOPIC, weight_version(3)) as (publisher, replies):
        rounds = Rounds(publisher, replies)
        async with contextlib.AsyncExitStack() as living:
            for number in range(WORKERS):
                await living.enter_async_context(worker(config, f"rollout-{number}"))
            owners = await rounds.settle(WORKERS)
            assert [await rounds.play() for _ in range(5)] == [owners] * 5


async def test_only_trajectories_of_a_killed_worker_move_and_as_few_to_a_new_one(config, tmp_path):
    async with connected(config, actions.TOPIC, weight_version(3)) as (publisher, replies):
        rounds = Rounds(publisher, replies)
        async with contextlib.AsyncExitStack() as living:
            with worker_process("rollout", config, tmp_path) as process:
                for number in range(1, WORKERS):
                    await living.enter_async_context(worker(config, f"rollout-{number}"))
                owners = await rounds.settle(WORKERS)
                process.kill()
                await asyncio.to_thread(throw_out, config, "rollout", "rollout-0")
                without = await rounds.settle(WORKERS - 1)
            assert moved(owners, without) == {name for name, owner in owners.items() if owner == "rollout-0"}
            await living.enter_async_context(worker(config, f"rollout-{WORKERS}"))
            again = await rounds.settle(WORKERS)
            assert moved(without, again) == {name for name, owner in again.items() if owner == f"rollout-{WORKERS}"}
            for shares, counts in ((owners, [1] * 5), (without, [1, 1, 1, 2]), (again, [1] * 5)):
                assert partition_counts(shares) == counts


def moved(before: dict[str, str], after: dict[str, str]) -> set[str]:
    """Return the trajectories that changed their worker."""
    return {name for name in before if before[name] != after[name]}


def partition_counts(owners: dict[str, str]) -> list[int]:
    """Return the numbers of partitions of the workers, in order."""
    partitions = range(WORKERS)
    places = {(owner, partition_of(name.encode(), partitions, partitions)) for name, owner in owners.items()}
    return sorted(Counter(owner for owner, _ in places).values())
