"""Starts the processes of a run, keeps them alive, says why one died, and ends them all.

Each process has its own subreaper (:mod:`dart_streams.launch.subreaper`), session and log file; none outlives the
supervisor.
"""

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import psutil
import structlog

from dart_streams.errors import UserError
from dart_streams.launch import process_registry as leftovers
from dart_streams.launch import subreaper
from dart_streams.launch.restarts import Deaths, after_death, explain

TAIL_LINES = 15
KILL_MARGIN_S = 2.0


class ProcessFailedError(UserError):
    """A process died again and again, or with an error that the user must mend."""

    exit_code = 4


class ProcessSpec(msgspec.Struct, frozen=True):
    """A process to keep alive: its name in logs and metrics, and its command line.

    One that is ``last`` outlives the others when everything ends, for it takes down what they have told.
    """

    name: str
    command: tuple[str, ...]
    last: bool = False


class Child:
    """One supervised process and what became of its lives."""

    def __init__(self, spec: ProcessSpec, log: Path) -> None:
        self.spec = spec
        self.log = log
        self.process: asyncio.subprocess.Process | None = None
        self.log_start = 0
        self.started_s = 0.0
        self.starts = 0
        self.wanted = True
        self.once = False
        self.keeper: asyncio.Task[None] | None = None

    async def start(self, grace_s: float) -> None:
        """Start one life; its output is appended to the log."""
        command = [sys.executable, "-I", "-S", subreaper.__file__, str(grace_s), *self.spec.command]
        with self.log.open("ab") as output:
            self.log_start = output.tell()
            self.process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
            )
        self.started_s = time.monotonic()
        self.starts += 1

    def tail(self) -> str:
        """Return the last lines that the present life wrote."""
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            file.seek(max(self.log_start, self.log.stat().st_size - 16_384))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-TAIL_LINES:])
        return ""

    def last_line(self) -> str:
        """Return the last line that the present life wrote."""
        return self.tail().rpartition("\n")[2].strip()

    def send(self, number: signal.Signals) -> None:
        """Signal the leash, which passes it on."""
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)


class Supervisor:
    """The children of a run. :attr:`gave_up` becomes an exception when one of them is beyond help."""

    def __init__(self, folder: Path, drain_s: float, tell: Callable[[str], None] = lambda text: None) -> None:
        self.folder = folder
        self.tell = tell
        self.drain_s = drain_s
        self.children: dict[str, Child] = {}
        self.gave_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.roster = leftovers.ProcessRegistry(leftovers.this_process())
        self.log: Any = structlog.get_logger()
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        self.save_roster()

    async def start(self, specs: Iterable[ProcessSpec]) -> None:
        """Start processes and keep them alive until they are stopped."""
        for spec in specs:
            child = self.children[spec.name] = Child(spec, self.folder / "logs" / f"{spec.name}.log")
            await child.start(self.drain_s)
            child.keeper = asyncio.create_task(self.keep(child), name=f"keep {spec.name}")
            self.log.info("started", child=spec.name, pid=child.process and child.process.pid)
        self.save_roster()

    async def run_once(self, spec: ProcessSpec) -> None:
        """Run a process to its end; raise :class:`ProcessFailedError` with the end of its log if it fails."""
        child = self.children[spec.name] = Child(spec, self.folder / "logs" / f"{spec.name}.log")
        child.once = True
        await child.start(self.drain_s)
        child.keeper = asyncio.create_task(self.keep(child), name=f"keep {spec.name}")
        self.save_roster()
        await asyncio.shield(child.keeper)
        self.children.pop(spec.name, None)
        if self.gave_up.done():
            self.gave_up.result()

    async def keep(self, child: Child) -> None:
        """Start a process again whenever it dies unasked, with back-off; give up if that does not help."""
        deaths = Deaths()
        while True:
            assert child.process is not None
            code = await child.process.wait()
            if not child.wanted or (child.once and code == 0):
                self.log.info("stopped", child=child.spec.name, how=explain(code))
                return
            lived_s = time.monotonic() - child.started_s
            deaths, delay_s = (deaths, None) if child.once else after_death(deaths, lived_s, code)
            why = explain(code)
            self.log.warning(
                "died", child=child.spec.name, why=why, lived_s=round(lived_s, 1), again_in_s=delay_s, log=child.tail()
            )
            again = "not started again" if delay_s is None else f"starting it again in {delay_s:g} s"
            self.tell(f"{child.spec.name} died: {why}, {again}; its log is {child.log}")
            if delay_s is None:
                self.give_up(child, why, deaths)
                return
            await asyncio.sleep(delay_s)
            if not child.wanted:
                return
            await child.start(self.drain_s)
            self.save_roster()

    def give_up(self, child: Child, why: str, deaths: Deaths) -> None:
        """Make the run fail with what is known of the death."""
        if not self.gave_up.done():
            times = "" if deaths.quick <= 1 else f" {deaths.quick} times in a row"
            self.gave_up.set_exception(
                ProcessFailedError(f"{child.spec.name} died{times}: {why}. The end of {child.log}:\n{child.tail()}")
            )

    async def stop(self, *names: str) -> None:
        """Let these processes drain; what is not done after the drain time is killed by its leash."""
        children = [self.children[name] for name in names if name in self.children]
        for child in children:
            child.wanted = False
            child.send(signal.SIGTERM)
        keepers = [child.keeper for child in children if child.keeper is not None]
        if not keepers:
            return
        _, late = await asyncio.wait(keepers, timeout=self.drain_s + subreaper.REAP_S + KILL_MARGIN_S)
        for child in children:
            if child.keeper in late:
                self.log.error("did not end", child=child.spec.name)
                child.send(signal.SIGKILL)
        for child in children:
            self.children.pop(child.spec.name, None)
        self.save_roster()

    async def stop_all(self) -> None:
        """Stop everything: at once, but for what is to be last."""
        await self.stop(*(name for name, child in self.children.items() if not child.spec.last))
        await self.stop(*self.children)

    def kill_all(self) -> None:
        """Have every leash kill at once: it takes the second signal as that."""
        for child in self.children.values():
            child.wanted = False
            child.send(signal.SIGTERM)
            child.send(signal.SIGINT)

    def save_roster(self, services: bool | None = None) -> None:
        """Write down which processes there are, for whoever comes after a killed supervisor."""
        marks = []
        for child in self.children.values():
            if child.process is not None and child.process.returncode is None:
                with contextlib.suppress(psutil.NoSuchProcess):
                    marks.append(leftovers.ProcessIdentity.of(child.spec.name, child.process.pid))
        self.roster = leftovers.ProcessRegistry(
            self.roster.supervisor, tuple(marks), self.roster.services if services is None else services
        )
        leftovers.write(self.folder / "processes.json", self.roster)

    def forget(self) -> None:
        """Remove the roster: nothing of this run is left to be found."""
        (self.folder / "processes.json").unlink(missing_ok=True)
