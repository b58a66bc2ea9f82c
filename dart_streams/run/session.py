"""A supervised run from its first to its last second: services up, the circle, signals, everything down again.

The first Ctrl-C (or SIGTERM) drains, the second kills. Only services that the run itself has started are stopped.
"""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
from rich.console import Console

from dart_streams.config import Config
from dart_streams.errors import UserError
from dart_streams.run import usage
from dart_streams.run.circle import Circle, bring_up
from dart_streams.run.display import Display
from dart_streams.run.folder import RunFolder
from dart_streams.run.lag import lag_reader
from dart_streams.run.newest import TrainedRows
from dart_streams.run.supervisor import Supervisor
from dart_streams.services import local

Tell = Callable[[str], None]
Finish = Callable[[Circle], Awaitable[None]]


class InterruptedRun(UserError):
    """Somebody asked the run to end before its time."""

    exit_code = 130


class Session:
    """One run on this machine. ``make_circle`` and ``finish`` (the report) are given, so that tests can vary them."""

    def __init__(
        self,
        folder: RunFolder,
        make_circle: Callable[[Supervisor], Circle],
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

    async def live(self, circle: Circle) -> None:
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

    async def end(self, circle: Circle, supervisor: Supervisor, outcome: str) -> None:
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
async def shown(circle: Circle, console: Console) -> AsyncIterator[None]:
    """Show the run while the body lasts. What the display itself suffers does not hurt the run."""
    trained = TrainedRows(circle.config)
    display = Display(circle, console, trained.newest_metrics)
    tasks = [asyncio.create_task(display.show(), name="display"), asyncio.create_task(look(display), name="look")]
    tasks.append(asyncio.create_task(usage.sample(circle.supervisor, usage.services_folder(circle.supervisor))))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        trained.close()


async def look(display: Display) -> None:
    """Read lag and training metrics once the topics are there."""
    await display.circle.watched.wait()
    async with lag_reader(display.circle.config.bus) as lags:
        await display.look(lags)
