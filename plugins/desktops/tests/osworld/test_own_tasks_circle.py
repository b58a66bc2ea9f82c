"""The circle on OSWorld's own tasks, if there is a checkout: both workers demonstrate, and it trains.

The tasks are those whose oracle was worth 1 when they were checked (docs/data/osworld.csv). ``DART_OSWORLD_EACH`` of
each application are played. Files that they need are substitutes of our own making.
"""

import csv
import os
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from console.runs.run_log import read_events
from dart_desktops.osworld import tasks
from dart_desktops.osworld.mirror import Mirror
from dart_desktops.osworld.placeholder_mirror import fill
from dart_streams.config import Config
from dart_streams.config.tasks import OsworldTasks
from plugins.desktops.tests import osworld_needs
from plugins.desktops.tests.served_desktops import Served, served
from plugins.desktops.tests.two_workers import LEASE_S, OURS, REMOTE, Finished, episodes, finished_run, rewards, shared
from tests.waiting import until
from topics import curated, trained

EACH = int(os.environ.get("DART_OSWORLD_EACH", "3"))
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(7200),
    osworld_needs.EVALUATORS,
    osworld_needs.CHECKOUT,
]
CHECKED = Path("docs/data/osworld.csv")
TIMES = 4
"""Demonstrations of each task, so that nearly every one is played by both workers: 7 of 8."""
MAX_STEPS = 15
"""As in OSWorld. The longest oracle has eight actions: it pauses once for a terminal to open, and once for its end."""
ACQUIRE = """
import asyncio, json, os, sys, urllib.request
from dart_desktops.osworld.machine import MachineEndpoint
from dart_desktops.osworld.machine import Machine
from dart_desktops.osworld.osworld_session import prepare_home
server, token = sys.argv[1], open(sys.argv[2]).read()
body = json.dumps({"ttl_s": float(os.environ["DART_LEASE_S"]), "wait_s": 60}).encode()
request = urllib.request.Request(server + "/leases", body, {"Authorization": "Bearer " + token})
made = urllib.request.urlopen(request).read().decode()
async def prepare(lease):
    async with Machine(MachineEndpoint(url=lease["url"], token=lease["token"]), 60.0) as machine:
        await prepare_home(machine)
asyncio.run(prepare(json.loads(made)))
print(made)
"""
"""Leases a desktop, and gives it what OSWorld's image has: the worker that asks for it knows nothing of this."""


def chosen() -> list[str]:
    """Return the pages to play; the second worker's machines replay no web pages."""
    by_app: defaultdict[str, list[str]] = defaultdict(list)
    with CHECKED.open(newline="") as file:
        for row in csv.DictReader(file):
            if (row["untouched"], row["oracle"], row["pages"]) == ("0", "1", ""):
                by_app[row["task"].partition("/")[0]].append(row["task"])
    return [page for pages in by_app.values() for page in pages[:EACH]]


def write(folder: Path, pages: list[str]) -> Path:
    """Write a mirror of what the pages need, and a task set with each of them ``TIMES`` times; return its file."""
    mirror = folder / "mirror"
    mirror.mkdir()
    examples = OsworldTasks().examples(Path())
    fill(Mirror(mirror), [tasks.load(examples, page) for page in pages])
    table = f'[osworld]\nfolder = "{examples}"\nlist = ""\n'
    for page in pages:
        table += f'[[pages]]\nenvironment = "osworld"\npage = "{page}"\nmax_steps = {MAX_STEPS}\n'
        table += f"train_seeds = [0, {TIMES}]\nheldout_seeds = [0, 0]\n"
    file = folder / "tasks.toml"
    file.write_text(table)
    return file


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def desktops(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """Four desktops, two for each worker."""
    folder = tmp_path_factory.mktemp("served")
    async with served(folder, (1920, 1080), slots=4, lease_s=LEASE_S) as running:
        yield running


def configured(services: Any, desktops: Served, folder: Path) -> Config:
    """Return the configuration of a run whose training needs the demonstrations: the scripted policy solves nothing."""
    osworld = {
        "lease_url": desktops.leases,
        "lease_token": f"file:{desktops.token_file}",
        "mirror_folder": str(folder / "mirror"),
        "call_timeout_s": 120.0,
        "reset_timeout_s": 300.0,
    }
    limits = {"request_timeout_s": 120.0, "episode_timeout_s": 1200.0}
    return services.config(
        run={"minutes": 30.0, "train_steps": 1, "drain_s": 60.0, "state_dir": str(folder)},
        tasks={"file": str(write(folder, chosen()))},
        env={"backend": "osworld", "slots": 2, **limits, "osworld": osworld},
        rollout={"engine": "scripted"},
        curation={"budget": {"base": 4}},
        trainer={"groups_per_step": 1},
        evaluation={"episodes": 0, "timeout_s": 5400.0},
        ui={"enabled": False},
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def finished(services: Any, desktops: Served, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A run that both workers have played: the second waits as long as OSWorld does, for it sees screens only."""
    config = configured(services, desktops, tmp_path_factory.mktemp("circle"))
    return await finished_run(config, desktops, ACQUIRE, pause_s=2.0)


def demonstrated(finished: Finished) -> dict[str, dict[str, set[float]]]:
    """Return the rewards of demonstrations, by page and worker."""
    found: defaultdict[str, defaultdict[str, set[float]]] = defaultdict(lambda: defaultdict(set))
    for trajectory in episodes(finished):
        last = trajectory[-1]
        if last.order.purpose == "demonstration":
            page = last.order.task_id.removeprefix("osworld/").partition("#")[0]
            found[page][last.env_host].add(last.end.reward)
    return {page: dict(hosts) for page, hosts in found.items()}


async def test_every_task_is_demonstrated_and_worth_1_on_whichever_worker(finished):
    assert not finished.faults, finished.shown
    found = demonstrated(finished)
    assert found.keys() == set(chosen()), finished.shown
    assert {page: hosts for page, hosts in found.items() if set().union(*hosts.values()) != {1.0}} == {}
    both = [page for page, hosts in found.items() if hosts.keys() == {OURS, REMOTE}]
    assert len(both) >= 0.6 * len(found), f"played by both: {both}"


async def test_the_same_actions_are_worth_the_same_on_both(finished):
    both, remote = shared(finished), rewards(finished, REMOTE)
    assert both == {key: remote[key] for key in both}


async def test_a_group_without_a_success_is_trained_on_with_a_demonstration(finished):
    groups = list(read_events(finished.config.bus, [curated.TOPIC]))
    assert list(read_events(finished.config.bus, [trained.TOPIC])), finished.shown
    assert {member.source for group in groups for member in group.members} == {"online", "pool"}
    assert {member.reward for group in groups for member in group.members} == {0.0, 1.0}


async def test_no_desktop_is_left_leased_and_no_episode_is_lost(finished, desktops):
    played = {one.trajectory_id for one in finished.observations}
    ended = {one.trajectory_id for one in finished.observations if one.end is not None}
    assert played == ended

    async def ready() -> bool:
        return {slot["state"] for slot in (await desktops.ask("GET"))[1]} == {"ready"}

    await until(ready)
