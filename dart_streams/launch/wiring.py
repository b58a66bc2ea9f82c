"""A run's session put together: its folder, its processes, the topics it needs and what happens at its end."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import TextIO

from rich.console import Console

from dart_streams.history.run_folder import RunFolder
from dart_streams.launch.processes import ProcessSet
from dart_streams.launch.session import Finish, Session
from dart_streams.launch.supervisor import Supervisor
from dart_streams.launch.training_run import TrainingRun
from dart_streams.telemetry import setup
from workers.curator.changelogs import changelog_topics


def session_of(
    made: RunFolder,
    processes: ProcessSet | None,
    finish: Finish,
    console: Console,
    *,
    find_policy: Callable[[Supervisor], Awaitable[str]] | None = None,
    before_only: bool = False,
    owns_services: bool = False,
) -> Session:
    """Return the session of a run of ``processes`` (None: attached), which calls ``find_policy`` first, if given."""
    topics = tuple(changelog_topics(made.config()))

    def make_run(supervisor: Supervisor) -> TrainingRun:
        return TrainingRun(
            made,
            supervisor,
            processes,
            extra_topics=topics,
            notify=session.notify,
            find_policy=functools.partial(find_policy, supervisor) if find_policy is not None else None,
            before_only=before_only,
        )

    session = Session(made, make_run, finish, console, owns_services=owns_services)
    return session


def live(made: RunFolder, make_session: Callable[[TextIO], Session]) -> None:
    """Run a session with its log in the run's folder; ``make_session`` is given the log's file."""
    (made.path / "logs").mkdir(exist_ok=True)
    with (made.path / "logs" / "supervisor.log").open("a", buffering=1) as log:
        setup.start_logs("supervisor", log)
        asyncio.run(make_session(log).run())
