"""The circle on tasks of OSWorld: one worker leases our desktops, one has them as machines that it knows nothing of."""

import asyncio
import io
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import pytest_asyncio
from rich.console import Console

from dart_streams.cli.run import write_report
from dart_streams.config import Config
from dart_streams.history import run_folder
from dart_streams.history.run_log import read_events
from dart_streams.launch import processes
from dart_streams.launch.session import Session
from dart_streams.launch.supervisor import ProcessSpec
from tests.integration.served_desktops import Served, served
from tests.integration.test_osworld import ACQUIRE, RELEASE
from tests.integration.test_osworld_episodes import until
from tests.osworld import click_tasks
from topics import curated, observations, trained
from topics.observations import Observation
from workers.env.osworld import sidecar

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(1500),
    pytest.mark.skipif(
        not (sidecar.ENVIRONMENT / "bin" / "python").exists(), reason="needs .venv/osworld: run `make osworld`"
    ),
]
OURS, REMOTE = "env-ours", "env-remote"
NAMES = ("press", "press-both", "press-other")
LEASE_S = 900.0
"""Of a machine that a program has made: nobody renews it."""
STAND_IN = "benchmarks.stand_in_trainer"


class Finished(NamedTuple):
    """A run that is over."""

    config: Config
    shown: str
    observations: list[Observation]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def desktops(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """Four desktops, two for each worker."""
    async with served(tmp_path_factory.mktemp("served"), click_tasks.SIZE, slots=4, lease_s=LEASE_S) as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for the run and its tasks."""
    yield tmp_path_factory.mktemp("circle")


def configured(services: Any, desktops: Served, folder: Path) -> Config:
    """Return the configuration of a short run whose oracle solves half of its episodes."""
    return services.config(
        run={"minutes": 10.0, "train_steps": 1, "drain_s": 20.0, "demonstrate": False, "state_dir": str(folder)},
        tasks={"file": str(click_tasks.write(folder, *NAMES))},
        env=click_tasks.leased(desktops, folder),
        rollout={"engine": "scripted", "scripted": {"success_rate": 0.6}},
        curation={"budget": {"base": 4}, "pool": {"enabled": False}},
        trainer={"groups_per_step": 1},
        evaluation={"episodes": 0},
        ui={"enabled": False},
    )


def worker(made: run_folder.RunFolder, name: str, osworld: dict[str, Any]) -> ProcessSpec:
    """Return an environment worker with settings of its own beside those of the run."""
    config = made.config()
    settings = msgspec.structs.replace(config.env.osworld, **osworld)
    env = msgspec.structs.replace(config.env, osworld=settings)
    file = made.path / f"{name}.toml"
    run_folder.write_toml(file, msgspec.structs.replace(config, env=env, tasks=processes.relative_tasks(config)))
    program = Path(sys.executable).parent / "dart-streams"
    return ProcessSpec(name, (str(program), "worker", "env", "--config", str(file), "--id", name))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def finished(services: Any, desktops: Served, folder: Path) -> Finished:
    """A run in which both workers have played."""
    config = configured(services, desktops, folder)
    made = run_folder.create(config, Path(config.tasks.file), run_folder.new_id(), resume=False)
    program = Path(sys.executable).parent / "dart-streams"
    found = processes.processes_of(made.config(), made.config_file, processes.Programs(program, program))
    arguments = (desktops.leases, desktops.token_file)
    unknown = {
        "lease_url": "",
        "lease_token": "",
        "acquire": (sys.executable, "-c", ACQUIRE, *arguments),
        "release": (sys.executable, "-c", RELEASE, *arguments),
        "lease_s": LEASE_S,
    }
    found = msgspec.structs.replace(
        found,
        env=(worker(made, OURS, {}), worker(made, REMOTE, unknown)),
        trainer=(ProcessSpec("trainer", (sys.executable, "-m", STAND_IN, str(made.config_file))),),
    )
    shown = io.StringIO()
    await Session(made, found, write_report, Console(file=shown, width=160)).run()
    config = made.config()
    return Finished(config, shown.getvalue(), await asyncio.to_thread(all_observations, config))


def all_observations(config: Config) -> list[Observation]:
    return list(read_events(config.bus, [observations.TOPIC]))


def episodes(finished: Finished) -> Iterator[list[Observation]]:
    """Yield the observations of each episode that has a reward."""
    told: defaultdict[str, list[Observation]] = defaultdict(list)
    for observation in finished.observations:
        told[observation.trajectory_id].append(observation)
    for trajectory in told.values():
        end = trajectory[-1].end
        if end is not None and end.reward is not None:
            yield trajectory


Played = tuple[str, tuple[str, ...]]


def rewards(finished: Finished, host: str) -> dict[Played, set[tuple[str, float]]]:
    """Return how the episodes of a worker ended, by their task and what was done."""
    found: defaultdict[Played, set[tuple[str, float]]] = defaultdict(set)
    for trajectory in episodes(finished):
        last = trajectory[-1]
        if last.env_host == host:
            done = tuple(observation.taken.action for observation in trajectory if observation.taken)
            found[last.order.task_id, done].add((last.end.kind, last.end.reward))
    return found


async def test_the_circle_turns_on_tasks_of_osworld_without_a_fault(finished):
    ends = [observation.end for observation in finished.observations if observation.end is not None]
    faults = {end.reason for end in ends if end.reward is None and end.kind != "cancelled"}
    assert not faults, finished.shown
    assert sum(end.kind == "success" for end in ends) >= 2, finished.shown
    groups = await asyncio.to_thread(lambda: list(read_events(finished.config.bus, [curated.TOPIC])))
    steps = await asyncio.to_thread(lambda: list(read_events(finished.config.bus, [trained.TOPIC])))
    assert steps
    assert {reward for group in groups for member in group.members for reward in [member.reward]} == {0.0, 1.0}


async def test_a_machine_of_which_only_the_contract_is_known_gives_the_same_rewards(finished):
    ours, remote = rewards(finished, OURS), rewards(finished, REMOTE)
    assert all(len(ends) == 1 for found in (ours, remote) for ends in found.values()), "the same actions, one end"
    both = ours.keys() & remote.keys()
    assert {key: ours[key] for key in both} == {key: remote[key] for key in both}
    worth = {reward for key in both for _, reward in ours[key]}
    assert worth == {0.0, 1.0}, f"both workers have solved a task and failed in one: {sorted(both)}"


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
