"""A supervised run with its services and signals.

The first Ctrl-C (or SIGTERM, or the end of the terminal) drains, the second kills. A run stops only the services that
it has started.
"""

import asyncio
import contextlib
import dataclasses
import functools
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TextIO

import msgspec
from rich.console import Console

from console.launch import process_registry, provenance_reader
from console.launch.processes import PAGE_FILE, ProcessSet, find_programs
from console.launch.run_wait import watch_endpoint
from console.launch.services import local
from console.launch.services.daemon import Home
from console.launch.services.jars import SERVICES
from console.launch.supervisor import Supervisor
from console.launch.training_run import TrainingRun
from console.runs.process_usage import sample_usage
from console.runs.run_folder import RunFolder
from console.views.terminal import Display, Moment, summarize
from dart_streams.background import cancel_tasks, run_beside, stop_signals
from dart_streams.bus.lag import lag_reader
from dart_streams.clock import now_ms
from dart_streams.errors import UserError
from dart_streams.telemetry import setup

Finish = Callable[[TrainingRun], Awaitable[None]]
PAGE_POLL_INTERVAL_S = 0.5


class InterruptedRun(UserError):
    """A signal ended the run early."""

    exit_code = 130


@dataclasses.dataclass
class Session:
    """A run on this machine, attached without ``processes``; ``find_policy`` begins it, ``finish`` reports it."""

    folder: RunFolder
    processes: ProcessSet | None
    finish: Finish
    console: Console
    _: dataclasses.KW_ONLY
    find_policy: Callable[[Supervisor], Awaitable[str]] | None = None
    before_only: bool = False
    owns_services: tuple[str, ...] = ()
    page: str = dataclasses.field(default="", init=False)

    def __post_init__(self) -> None:
        self.config = self.folder.config()

    def make_run(self, supervisor: Supervisor) -> TrainingRun:
        """Return the training run."""
        return TrainingRun(
            self.folder,
            supervisor,
            self.processes or ProcessSet(),
            attached=self.processes is None,
            notify=self.notify,
            find_policy=self.find_policy,
            before_only=self.before_only,
        )

    def notify(self, text: str) -> None:
        """Print a message at the terminal."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    async def run(self) -> None:
        """Run all phases and stop everything at the end; raise :class:`InterruptedRun` after a signal."""
        supervisor = Supervisor(self.folder.path, self.config.run.drain_s, self.notify)
        run = self.make_run(supervisor)
        outcome = "failed"
        async with catch_signals(supervisor, self.notify) as interrupted:
            phases = asyncio.create_task(self.go_through(run), name="phases")
            try:
                await asyncio.wait({phases, supervisor.gave_up, interrupted}, return_when=asyncio.FIRST_COMPLETED)
                if phases.done():
                    phases.result()
                    outcome = "complete"
                else:
                    await cancel_tasks(phases)
                    if supervisor.gave_up.done():
                        supervisor.gave_up.result()
                    outcome = "interrupted"
            finally:
                await self.end(run, outcome)
                if outcome == "failed" and self.processes is not None:
                    self.notify(f"once the cause is gone, resume the run with `{self.folder.resume_command}`")
        if outcome == "interrupted":
            again = "start it again" if self.processes is None else f"resume it with `{self.folder.resume_command}`"
            raise InterruptedRun(f"interrupted; {again}")

    async def go_through(self, run: TrainingRun) -> None:
        """Start the services, display the run, and write its report."""
        model = find_programs().model
        start = await asyncio.to_thread(provenance_reader.read_provenance, sys.argv, model)
        run.journal = run.journal.with_start(start)
        url = self.config.rollout.openai.base_url if self.config.rollout.engine == "openai" else ""
        async with run_beside(*([watch_endpoint(url, run.note_endpoint)] if url else ())):
            with run.phase("services"):
                await self.bring_services_up(run.supervisor)
                await run.check_access()
            async with self.page_served(run.supervisor), show_run(run, self.console, lambda: self.page):
                await run.run()
        # The report contains the outcome; `end` corrects it if the report fails.
        run.journal = msgspec.structs.replace(run.journal, outcome="complete")
        with run.phase("report"):
            await self.finish(run)

    @contextlib.asynccontextmanager
    async def page_served(self, supervisor: Supervisor) -> AsyncIterator[None]:
        """Start the run's web page, if it has one, and show its address once it is up.

        The page of an attached run is another process of the deployment, with its file in a folder for both alone.
        """
        file = Path(self.config.run.state_dir) / "page" / PAGE_FILE
        if self.processes is not None:
            file = self.folder.path / PAGE_FILE
            file.unlink(missing_ok=True)
            await supervisor.start(self.processes.ui)
        async with run_beside(self.announce_page(file)):
            yield

    async def announce_page(self, file: Path) -> None:
        """Show the page's address whenever the file has a new one."""
        while True:
            if (found := address_in(file)) not in ("", self.page):
                self.page = found
                self.notify(f"watch it at {found}")
            await asyncio.sleep(PAGE_POLL_INTERVAL_S)

    async def bring_services_up(self, supervisor: Supervisor) -> None:
        """Start the services; an interrupted start is awaited, so that they can be stopped."""
        starting = asyncio.create_task(asyncio.to_thread(local.ensure_up, self.config, self.notify))
        try:
            await asyncio.shield(starting)
        finally:
            with contextlib.suppress(UserError):
                started = await starting
                self.owns_services = tuple(dict.fromkeys((*self.owns_services, *started)))
            supervisor.save_registry(services=self.owns_services)

    async def end(self, run: TrainingRun, outcome: str) -> None:
        """Stop all processes, and write the outcome to the journal."""
        if run.supervisor.children:
            self.notify(f"draining {', '.join(sorted(run.supervisor.children))} (Ctrl-C again to kill)")
        await run.supervisor.stop_all()
        others = process_registry.living_runs(self.folder.path.parent, but=self.folder.path)
        if self.owns_services and others:
            up = " and ".join(name.capitalize() for name in self.owns_services)
            stay = "stay" if len(self.owns_services) > 1 else "stays"
            self.notify(f"{up} {stay} up for {', '.join(others)}: `dart-streams down` stops them")
        elif self.owns_services:
            stopped = await asyncio.to_thread(local.stop_services, self.config, names=self.owns_services)
            self.notify(f"stopped {' and '.join(stopped)}" if stopped else "the services were down already")
        run.journal = msgspec.structs.replace(run.journal, outcome=outcome)
        self.folder.write_journal(run.journal)
        run.supervisor.registry_file.unlink(missing_ok=True)


def address_in(file: Path) -> str:
    """Return the address in the web page's file, empty without one."""
    with contextlib.suppress(OSError):
        return str(msgspec.json.decode(file.read_bytes())["url"])
    return ""


@contextlib.asynccontextmanager
async def catch_signals(supervisor: Supervisor, notify: Callable[[str], None]) -> AsyncIterator["asyncio.Future[None]"]:
    """Yield a future that the first signal completes; a second signal kills all children."""
    loop = asyncio.get_running_loop()
    interrupted: asyncio.Future[None] = loop.create_future()

    def on_signal() -> None:
        if not interrupted.done():
            interrupted.set_result(None)
            return
        notify("killing")
        supervisor.kill_all()

    caught = stop_signals()
    for number in caught:
        loop.add_signal_handler(number, on_signal)
    try:
        yield interrupted
    finally:
        for number in caught:
            loop.remove_signal_handler(number)


@contextlib.asynccontextmanager
async def show_run(run: TrainingRun, console: Console, page: Callable[[], str]) -> AsyncIterator[None]:
    """Display a run and sample its processes during the body; a failure ends neither. ``page`` returns an address."""
    display = Display(functools.partial(moment_of, run, page), console)
    services = local.folder_of(run.config)
    jvms = {name: found[0].pid for name in SERVICES if (found := Home(services / name).find())}

    def process_roots() -> dict[str, int]:
        children = run.supervisor.children.items()
        return {name: child.process.pid for name, child in children if child.process} | jvms

    async def read_lag() -> None:
        await run.has_topics.wait()
        async with lag_reader(run.config.bus) as lags:
            await display.poll(lags)

    async with run_beside(display.show(), read_lag(), sample_usage(run.supervisor.folder, process_roots)):
        yield


def moment_of(run: TrainingRun, page: Callable[[], str], lag: dict[tuple[str, str], int]) -> Moment:
    """Return the present state of a run for the display."""
    phase = run.journal.phases[-1] if run.journal.phases else None
    began = run.journal.phase("circle")
    slots = run.config.env.workers * run.config.env.slots
    since_ms = began.started_ms if began else now_ms()
    policy = run.supervisor.children.get("policy")
    return Moment(
        run_id=run.folder.id,
        phase=phase.name if phase else "begin",
        phase_s=(now_ms() - phase.started_ms) / 1000 if phase else 0.0,
        left_s=run.circle_end.remaining_s if run.circle_end else None,
        summary=summarize(run.follower.progress, now_ms(), slots, since_ms, run.planned_eval) if run.follower else None,
        waiting=run.describe_wait(),
        lag=lag,
        children=tuple((name, child.starts) for name, child in sorted(run.supervisor.children.items())),
        news=policy.tail().rpartition("\n")[2].strip() if policy else "",
        page=page(),
    )


def run_session(made: RunFolder, make_session: Callable[[TextIO], Session]) -> None:
    """Run a session with its log in the run's folder; ``make_session`` takes the log's file."""
    (made.path / "logs").mkdir(exist_ok=True)
    with (made.path / "logs" / "supervisor.log").open("a", buffering=1, encoding="utf-8") as log:
        setup.start_logs("supervisor", log)
        asyncio.run(make_session(log).run())
