"""The circle on OSWorld tasks: one worker leases our desktops, the other reaches them by the API alone."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from console.runs.run_log import read_events
from dart_streams.config import Config
from plugins.desktops.tests import osworld_needs
from plugins.desktops.tests.osworld import click_tasks
from plugins.desktops.tests.served_desktops import Served, served
from plugins.desktops.tests.two_workers import LEASE_S, OURS, REMOTE, Finished, episodes, finished_run, rewards, shared
from tests.waiting import until
from topics import curated, trained

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(2400), osworld_needs.EVALUATORS]
NAMES = ("press", "press-both", "press-other")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def desktops(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    async with served(tmp_path_factory.mktemp("served"), click_tasks.SIZE, slots=4, lease_s=LEASE_S) as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for the run and its tasks."""
    yield tmp_path_factory.mktemp("circle")


def configured(services: Any, desktops: Served, folder: Path) -> Config:
    """Return the configuration of a run whose oracle misses four clicks of ten."""
    return services.config(
        run={"minutes": 20.0, "train_steps": 1, "drain_s": 20.0, "demonstrate": False, "state_dir": str(folder)},
        tasks={"file": str(click_tasks.write(folder, *NAMES))},
        env=click_tasks.leased(desktops, folder),
        rollout={"engine": "scripted", "scripted": {"success_rate": 0.6}},
        curation={"budget": {"base": 4}, "pool": {"enabled": False}},
        trainer={"groups_per_step": 1},
        evaluation={"episodes": 0},
        ui={"enabled": False},
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def finished(services: Any, desktops: Served, folder: Path) -> Finished:
    """A run in which both workers have played."""
    return await finished_run(
        configured(services, desktops, folder),
        desktops,
        enough=lambda finished: worth_of_shared(finished) == {0.0, 1.0},
    )


def worth_of_shared(finished: Finished) -> set[float]:
    """Return what that is worth which both workers have done."""
    return {reward for ended in shared(finished).values() for _, reward in ended}


async def test_the_circle_turns_on_tasks_of_osworld_without_a_fault(finished):
    ends = [observation.end for observation in finished.observations if observation.end is not None]
    assert not finished.faults, finished.shown
    assert sum(end.kind == "success" for end in ends) >= 2, finished.shown
    groups = await asyncio.to_thread(lambda: list(read_events(finished.config.bus, [curated.TOPIC])))
    steps = await asyncio.to_thread(lambda: list(read_events(finished.config.bus, [trained.TOPIC])))
    assert steps
    assert {reward for group in groups for member in group.members for reward in [member.reward]} == {0.0, 1.0}


async def test_a_machine_known_by_its_contract_alone_gives_the_same_rewards(finished):
    ours, remote = rewards(finished, OURS), rewards(finished, REMOTE)
    assert all(len(ends) == 1 for found in (ours, remote) for ends in found.values()), "the same actions, one end"
    both = shared(finished)
    assert both == {key: remote[key] for key in both}
    assert worth_of_shared(finished) == {0.0, 1.0}, f"both workers have solved a task and failed in one: {both}"


async def test_a_reward_is_that_of_what_was_done(finished):
    """Whichever worker played it: what the evaluator wants was done, or was not."""
    hits = {"press": [click_tasks.GO], "press-both": [click_tasks.GO, click_tasks.ALSO]}
    for trajectory in episodes(finished):
        name = trajectory[0].order.task_id.rpartition("/")[2].partition("#")[0]
        done = [observation.taken.action for observation in trajectory if observation.taken]
        wanted = [f"click(start_box='{place}')".replace(" ", "") for place in hits.get(name, ())]
        complete = bool(wanted) and all(any(part in action for action in done) for part in wanted)
        assert trajectory[-1].end.reward == float(complete), (name, done)


async def test_no_desktop_is_left_leased(finished, desktops):
    assert finished

    async def ready() -> bool:
        return {slot["state"] for slot in (await desktops.ask("GET"))[1]} == {"ready"}

    await until(ready)
