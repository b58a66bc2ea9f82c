"""A run's session put together: its folder, its processes, the topics it needs and what happens at its end."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import TextIO

from rich.console import Console

from dart_streams.bus.topology import TopicSpec
from dart_streams.history.run_folder import RunFolder
from dart_streams.launch.processes import ProcessSet
from dart_streams.launch.session import Finish, Session
from dart_streams.launch.supervisor import Supervisor
from dart_streams.launch.training_run import TrainingRun
from dart_streams.telemetry import setup
from workers.curator.changelogs import changelog_topics

MakeRun = Callable[..., TrainingRun]
"""Makes a run of a supervisor, ``extra_topics`` and ``tell``."""


def session(
    made: RunFolder, make_run: MakeRun, finish: Finish | None, console: Console, *, owns_services: bool = False
) -> Session:
    """Return the session of a run; without ``finish`` it reports nothing at its end."""
    topics = tuple(changelog_topics(made.config()))

    def with_topics(supervisor: Supervisor) -> TrainingRun:
        return make_run(supervisor, extra_topics=topics, tell=wired.tell)

    wired = Session(made, with_topics, finish or nothing, console, owns_services=owns_services)
    return wired


def with_processes(
    made: RunFolder,
    processes: ProcessSet,
    find_policy: Callable[[Supervisor], Awaitable[str]] | None = None,
) -> MakeRun:
    """Return what makes a run of these processes, and of ``find_policy``, if it needs a policy first."""

    def make_run(
        supervisor: Supervisor, *, extra_topics: tuple[TopicSpec, ...], tell: Callable[[str], None]
    ) -> TrainingRun:
        find = functools.partial(find_policy, supervisor) if find_policy is not None else None
        return TrainingRun(made, supervisor, processes, extra_topics=extra_topics, tell=tell, find_policy=find)

    return make_run


async def nothing(_: TrainingRun) -> None:
    """Report nothing at the end of a run."""


def live(made: RunFolder, make_session: Callable[[TextIO], Session]) -> None:
    """Run a session, with its log in the run's folder; ``make_session`` is given the log's file."""
    (made.path / "logs").mkdir(exist_ok=True)
    with (made.path / "logs" / "supervisor.log").open("a", buffering=1) as log:
        setup.start_logs("supervisor", log)
        asyncio.run(make_session(log).run())
