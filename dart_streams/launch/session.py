"""A supervised run from its first to its last second: services up, the circle, signals, everything down again.

The first Ctrl-C (or SIGTERM) drains, the second kills. Only services that the run itself has started are stopped.
"""

import asyncio
import contextlib
import functools
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
from rich.console import Console

from dart_streams.bus.lag import lag_reader
from dart_streams.clock import now_ms
from dart_streams.config import Config
from dart_streams.errors import UserError
from dart_streams.history.run_folder import RunFolder
from dart_streams.history.trained_rows import TrainedRows
from dart_streams.launch import process_usage as usage
from dart_streams.launch.services import local
from dart_streams.launch.supervisor import Supervisor
from dart_streams.launch.training_run import TrainingRun, bring_up
from dart_streams.views.run_summary import summarise
from dart_streams.views.terminal import Display, Moment

Tell = Callable[[str], None]
Finish = Callable[[TrainingRun], Awaitable[None]]


class InterruptedRun(UserError):
    """Somebody asked the run to end before its time."""

    exit_code = 130


class Session:
    """One run on this machine. ``make_circle`` and ``finish`` (the report) are given, so that tests can vary them."""

    def __init__(
        self,
        folder: RunFolder,
        make_circle: Callable[[Supervisor], TrainingRun],
        finish: Finish,
        console: Console,
        *,
        owns_services: bool = False,
    ) -> None:
        self.folder = folder
        self.config: Config = folder.config()
        self.make_circle = make_circle
        self.finish = finish
        self.console = console
        self.owns_services = owns_services

    def tell(self, text: str) -> None:
        """Tell the person at the terminal what happens."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    async def run(self) -> None:
        """Go through the whole run.

        Raises
        ------
        InterruptedRun
            If a signal ended it early, after everything has drained.
        UserError
            If a process is beyond help, or something that was waited for did not come; the text says what to do.
        """
        supervisor = Supervisor(self.folder.path, self.config.run.drain_s, self.tell)
        circle = self.make_circle(supervisor)
        outcome = "failed"
        async with interruptible(supervisor, self.tell) as interrupted:
            life = asyncio.create_task(self.live(circle), name="life")
            try:
                await asyncio.wait({life, supervisor.gave_up, interrupted}, return_when=asyncio.FIRST_COMPLETED)
                outcome = await self.outcome_of(life, supervisor, interrupted)
            finally:
                await self.end(circle, supervisor, outcome)
        if outcome == "interrupted":
            raise InterruptedRun(f"interrupted; resume it with --resume {self.folder.id}")

    async def outcome_of(
        self, life: "asyncio.Task[None]", supervisor: Supervisor, interrupted: "asyncio.Future[None]"
    ) -> str:
        """Say how the run ended; raise what went wrong."""
        if not life.done():
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)
            if supervisor.gave_up.done():
                supervisor.gave_up.result()
            return "interrupted"
        life.result()
        return "complete"

    async def live(self, circle: TrainingRun) -> None:
        """Bring the services up, and let the circle live under the eyes of the display."""
        with circle.phase("services"):
            await self.bring_up(circle.supervisor)
        async with shown(circle, self.console):
            await circle.live()
        # What is left is to tell of it; the report says how the run went, and `end` corrects that if telling fails.
        circle.journal = msgspec.structs.replace(circle.journal, outcome="complete")
        with circle.phase("report"):
            await self.finish(circle)

    async def bring_up(self, supervisor: Supervisor) -> None:
        """Bring the services up. What has begun to start is waited for even if interrupted: then it can be stopped."""
        starting = asyncio.create_task(bring_up(self.config, self.tell))
        try:
            await asyncio.shield(starting)
        finally:
            with contextlib.suppress(UserError):
                self.owns_services = await starting or self.owns_services
            supervisor.save_roster(services=self.owns_services)

    async def end(self, circle: TrainingRun, supervisor: Supervisor, outcome: str) -> None:
        """Stop whatever runs, and note how it went."""
        if supervisor.children:
            self.tell(f"draining {', '.join(sorted(supervisor.children))} (Ctrl-C again to kill)")
        await supervisor.stop_all()
        if self.owns_services:
            stopped = await asyncio.to_thread(local.down, self.config)
            self.tell(f"stopped {' and '.join(stopped)}" if stopped else "the services were down already")
        circle.journal = msgspec.structs.replace(circle.journal, outcome=outcome)
        self.folder.write_journal(circle.journal)
        supervisor.forget()


@contextlib.asynccontextmanager
async def interruptible(supervisor: Supervisor, tell: Tell) -> AsyncIterator["asyncio.Future[None]"]:
    """Yield what becomes done at the first signal; the second one kills all children."""
    loop = asyncio.get_running_loop()
    interrupted: asyncio.Future[None] = loop.create_future()

    def on_signal() -> None:
        if not interrupted.done():
            interrupted.set_result(None)
            return
        tell("killing")
        supervisor.kill_all()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    try:
        yield interrupted
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


@contextlib.asynccontextmanager
async def shown(circle: TrainingRun, console: Console) -> AsyncIterator[None]:
    """Show the run while the body lasts; a failing display does not fail the run."""
    trained = TrainedRows(circle.config)
    display = Display(functools.partial(moment_of, circle), console, trained.newest_metrics)
    tasks = [
        asyncio.create_task(display.show(), name="display"),
        asyncio.create_task(look(circle, display), name="look"),
    ]
    tasks.append(asyncio.create_task(usage.sample(circle.supervisor, usage.services_folder(circle.supervisor))))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        trained.close()


async def look(circle: TrainingRun, display: Display) -> None:
    """Read lag and training metrics once the topics are there."""
    await circle.watched.wait()
    async with lag_reader(circle.config.bus) as lags:
        await display.look(lags)


def moment_of(circle: TrainingRun, lag: dict[tuple[str, str], int], trained: dict[str, float]) -> Moment:
    """Look at a run."""
    phase = circle.journal.phases[-1] if circle.journal.phases else None
    began = circle.journal.phase("circle")
    summary = None
    if circle.watch is not None:
        slots = circle.config.env.workers * circle.config.env.slots
        summary = summarise(circle.watch.progress, now_ms(), slots, began.started_ms if began else now_ms())
    return Moment(
        run_id=circle.folder.id,
        phase=phase.name if phase else "begin",
        phase_s=(now_ms() - phase.started_ms) / 1000 if phase else 0.0,
        left_s=None if circle.circle_ends_s is None else circle.circle_ends_s - time.monotonic(),
        summary=summary,
        lag=lag,
        trained=trained,
        children=tuple((name, child.starts) for name, child in sorted(circle.supervisor.children.items())),
        news=policy.last_line() if (policy := circle.supervisor.children.get("policy")) else "",
    )
