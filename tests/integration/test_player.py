"""A person's process on a real broker and database, with a real environment worker that plays simulated pages."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest

from console.views.play.gestures import Press, WrittenAction
from console.views.play.person_episode import PersonEpisode
from console.views.play.player import PersonClient
from dart_streams.config import Config, tasks
from tests.integration.env_harness import BOUND_S, POINT, played_config, process, worker
from tests.topic_reader import TopicReader
from topics import actions, observations

TASK = "simulated/steps-3#1"
WAIT = WrittenAction(action="wait()")
PARTITIONS = 4  # of ``actions``: each has a copy of what a person sends


@pytest.fixture
def configure(services, tmp_path: Path) -> Callable[..., Config]:
    return partial(played_config, services, tmp_path)


@contextlib.asynccontextmanager
async def player_of(config: Config, lease_s: float = 60.0, present: bool = True) -> AsyncIterator[PersonClient]:
    """Yield a person's process, with the page open."""
    async with PersonClient(config, tasks.tasks_of(config).get(TASK), lease_s) as player:
        player.present = present
        running = [asyncio.create_task(player.read()), asyncio.create_task(player.show_life())]
        try:
            yield player
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


async def until(player: PersonClient, condition: Callable[[PersonEpisode], bool]) -> PersonEpisode:
    """Return the episode once a condition holds."""
    async with asyncio.timeout(BOUND_S), player.changed:
        await player.changed.wait_for(lambda: player.episode is not None and condition(player.episode))
        assert player.episode is not None
        return player.episode


def is_turn(after: int) -> Callable[[PersonEpisode], bool]:
    return lambda episode: episode.stage == "turn" and len(episode.shown) == after + 1


async def click(player: PersonClient, after: int) -> None:
    """Click where the instruction says."""
    episode = await until(player, is_turn(after))
    x, y = POINT.findall(episode.shown[0].instruction)[0]
    await player.act(episode.request_id, Press(x=float(x), y=float(y)))


async def solve(player: PersonClient) -> PersonEpisode:
    for number in range(3):
        await click(player, number)
    return await until(player, lambda episode: episode.ended)


async def test_a_person_plays_one_episode_after_another(configure):
    config = configure()
    async with worker(config), player_of(config) as player:
        await player.begin()
        first = await solve(player)
        await player.begin()
        await player.begin()  # while one is under way it orders no other
        second = await until(player, is_turn(0))
        for request_id in (first.request_id, f"{second.trajectory_id}/1/0"):
            await player.act(request_id, WAIT)  # on a screen that is not shown now
        ended = await solve(player)
    assert [one.shown[-1].end.kind for one in (first, ended)] == ["success", "success"]
    assert second.trajectory_id == ended.trajectory_id != first.trajectory_id
    assert len(ended.shown) == 4, "actions on other screens were not sent"


async def test_signs_of_life_keep_a_lease_and_their_absence_ends_it(configure, tmp_path):
    config = configure()
    with process(config, tmp_path, tmp_path / "env.log") as env:
        async with player_of(config, lease_s=3.0) as player, TopicReader(config, actions.TOPIC) as reader:
            await player.begin()
            begun = await until(player, is_turn(0))
            for sent in (signal.SIGSTOP, signal.SIGCONT):  # a worker that stood still reads them late
                os.kill(env.pid, sent)
                await reader.count(len(reader.records) + 6 * PARTITIONS)
            assert all(one.alive for one in reader.events), "twice longer than a lease, at four signs a lease"
            assert player.episode == begun, "the person may think"
            player.present = False
            ended = await until(player, lambda episode: episode.ended)
    assert ended.shown[-1].end.reason == "the person was lost: no action and no sign of life for 3 s"


async def test_an_order_of_a_person_who_is_gone_is_no_lasting_load(configure):
    config = configure()
    async with player_of(config, lease_s=1.0, present=False) as player:
        await player.begin()
    async with worker(config), TopicReader(config, observations.TOPIC) as reader:
        ended = await reader.until(lambda read: next((one for one in read if one.end is not None), None))
    assert ended.end.kind == "policy_error"


async def test_who_ends_the_program_ends_the_episode_with_that_reason(configure):
    config = configure()
    async with worker(config), player_of(config) as player:
        await player.begin()
        await until(player, is_turn(0))
        await player.give_back("the person ended it")
        ended = await until(player, lambda episode: episode.ended)
    assert (ended.shown[-1].end.kind, ended.shown[-1].end.reason) == ("policy_error", "the person ended it")


@pytest.mark.timeout(300)
async def test_after_the_death_of_the_worker_a_person_plays_on(configure, tmp_path):
    config = configure()
    async with player_of(config) as player:
        with process(config, tmp_path, tmp_path / "first.log") as first:
            await player.begin()
            await click(player, 0)
            begun = await until(player, is_turn(1))
            os.kill(first.pid, signal.SIGKILL)
            await asyncio.to_thread(first.wait, BOUND_S)
        with process(config, tmp_path, tmp_path / "second.log"):
            await until(player, lambda episode: episode.trajectory_id != begun.trajectory_id)
            ended = await solve(player)
    assert ended.shown[-1].end.kind == "success"
    assert ended.order == begun.order, "the broker delivered the order again"
