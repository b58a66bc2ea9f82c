"""A run with two environment workers: one leases our desktops, the other reaches them by the API alone."""

import asyncio
import contextlib
import io
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from rich.console import Console

from console.launch import processes
from console.launch.run_start import write_report
from console.launch.session import Session
from console.launch.supervisor import ProcessSpec, Supervisor
from console.launch.training_run import TrainingRun
from console.runs import run_folder
from console.runs.run_log import read_events
from dart_streams.config import Config
from dart_streams.errors import ServiceUnavailable, UserError
from plugins.desktops.tests.served_desktops import Served
from plugins.desktops.tests.test_osworld import ACQUIRE, RELEASE
from topics import observations
from topics.observations import Observation

OURS, REMOTE = "env-ours", "env-remote"
LEASE_S = 900.0
"""Lease of a machine that a program has made: it is not renewed."""
STAND_IN = "benchmarks.stand_in_trainer"
POLL_INTERVAL_S = 5.0
Played = tuple[str, tuple[str, ...]]
"""A task, and the actions that were carried out."""


class Finished(NamedTuple):
    """A run that is over."""

    config: Config
    shown: str
    observations: list[Observation]

    @property
    def faults(self) -> set[str]:
        """The reasons of episodes without a reward, but for those that the end of the run cancelled."""
        ends = (observation.end for observation in self.observations)
        return {end.reason for end in ends if end is not None and end.reward is None and end.kind != "cancelled"}


def worker(made: run_folder.RunFolder, name: str, osworld: dict[str, Any]) -> ProcessSpec:
    """Return an environment worker with settings of its own beside those of the run."""
    config = made.config()
    settings = msgspec.structs.replace(config.env.osworld, **osworld)
    env = msgspec.structs.replace(config.env, osworld=settings)
    file = made.path / f"{name}.toml"
    run_folder.write_toml(file, msgspec.structs.replace(config, env=env, tasks=processes.relative_tasks(config)))
    program = Path(sys.executable).parent / "dart-streams"
    return ProcessSpec(name, (str(program), "worker", "env", "--config", str(file), "--id", name))


class Watched(Session):
    """A session whose training does not end before ``enough`` is set, whatever it has learnt."""

    enough: bool = True

    def make_run(self, supervisor: Supervisor) -> TrainingRun:
        run = super().make_run(supervisor)
        trained = run.enough
        run.enough = lambda state: trained(state) and self.enough
        return run


async def finished_run(
    config: Config,
    desktops: Served,
    acquire: str = ACQUIRE,
    enough: Callable[[Finished], bool] | None = None,
    **remote: Any,
) -> Finished:
    """Return a run that both workers have played, ``enough`` of it: what is drawn may take more than one step to come.

    ``acquire`` is the program that makes the second one's machines.
    """
    made = run_folder.create(config, Path(config.tasks.file), run_folder.new_id(), resume=False)
    program = Path(sys.executable).parent / "dart-streams"
    found = processes.processes_of(made.config(), made.config_file, processes.Programs(program, program))
    arguments = (desktops.leases, desktops.token_file)
    unknown = {
        "lease_url": "",
        "lease_token": "",
        "acquire": (sys.executable, "-c", acquire, *arguments),
        "release": (sys.executable, "-c", RELEASE, *arguments),
        "lease_s": LEASE_S,
        **remote,
    }
    found = msgspec.structs.replace(
        found,
        env=(worker(made, OURS, {}), worker(made, REMOTE, unknown)),
        trainer=(ProcessSpec("trainer", (sys.executable, "-m", STAND_IN, str(made.config_file))),),
    )
    shown = io.StringIO()
    session = Watched(made, found, write_report, Console(file=shown, width=160))
    config = made.config()
    async with watched(session, config, enough):
        await session.run()
    assert session.enough, f"run.minutes were over before there was enough:\n{shown.getvalue()}"
    return Finished(config, shown.getvalue(), await observed(config))


@contextlib.asynccontextmanager
async def watched(session: Watched, config: Config, enough: Callable[[Finished], bool] | None) -> AsyncIterator[None]:
    """Let the session's training end once there is ``enough``; without, when it has trained."""
    session.enough = enough is None

    async def look(wanted: Callable[[Finished], bool]) -> None:
        while not session.enough:
            await asyncio.sleep(POLL_INTERVAL_S)
            with contextlib.suppress(UserError, ServiceUnavailable):  # the run has no topics yet
                session.enough = wanted(Finished(config, "", await observed(config)))

    looking = asyncio.create_task(look(enough), name="look for enough") if enough else None
    try:
        yield
    finally:
        if looking is not None:
            looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await looking


async def observed(config: Config) -> list[Observation]:
    return await asyncio.to_thread(lambda: list(read_events(config.bus, [observations.TOPIC])))


def episodes(finished: Finished) -> Iterator[list[Observation]]:
    trajectories: defaultdict[str, list[Observation]] = defaultdict(list)
    for observation in finished.observations:
        trajectories[observation.trajectory_id].append(observation)
    for trajectory in trajectories.values():
        end = trajectory[-1].end
        if end is not None and end.reward is not None:
            yield trajectory


def rewards(finished: Finished, host: str) -> dict[Played, set[tuple[str, float]]]:
    """Return how the episodes of a worker ended, by their task and what was done."""
    found: defaultdict[Played, set[tuple[str, float]]] = defaultdict(set)
    for trajectory in episodes(finished):
        last = trajectory[-1]
        if last.env_host == host:
            done = tuple(observation.taken.action for observation in trajectory if observation.taken)
            found[last.order.task_id, done].add((last.end.kind, last.end.reward))
    return found


def shared(finished: Finished) -> dict[Played, set[tuple[str, float]]]:
    """Return how what both workers have played ended on ours."""
    ours = rewards(finished, OURS)
    return {played: ours[played] for played in ours.keys() & rewards(finished, REMOTE).keys()}
