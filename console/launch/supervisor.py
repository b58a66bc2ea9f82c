"""The supervisor starts the processes of a run, restarts dead ones, reports deaths, and ends them all.

Each process has a subreaper (:mod:`console.launch.subreaper`), a session and a log file of its own. No
process outlives the supervisor.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import psutil
import structlog

from console.launch import process_registry, subreaper
from console.launch.process_registry import ProcessIdentity, ProcessRegistry
from console.runs.run_folder import write_json
from dart_streams.config.text import lines_of
from dart_streams.errors import AccessRefused, UserError

TAIL_LINES = 15
KILL_MARGIN_S = 2.0
MIN_LIFE_S = 30.0
"""A shorter life is a quick death."""
FIRST_DELAY_S = 0.5
MAX_DELAY_S = 15.0
MAX_QUICK_DEATHS = 5
SAVE_RETRY_S = 2.0
NOT_STARTED = 1
"""Stands for the exit code of a process that could not be started."""


class ProcessFailedError(UserError):
    """A process keeps dying, or has an error that the user must correct."""

    exit_code = 4


class ProcessSpec(msgspec.Struct, frozen=True):
    """A process to keep alive, with its name in logs and metrics.

    A ``last`` process is stopped after the others to record their last records. A run goes on without an ``optional``
    process that keeps dying. ``environment`` has the variables that it gets beside the supervisor's.
    """

    name: str
    command: tuple[str, ...]
    last: bool = False
    optional: bool = False
    environment: dict[str, str] = {}


class Child:
    """A supervised process; ``starts`` counts its starts, and ``once`` lets it end by itself."""

    def __init__(self, spec: ProcessSpec, log: Path, *, once: bool = False) -> None:
        self.spec = spec
        self.log = log
        self.once = once
        self.process: asyncio.subprocess.Process | None = None
        self.log_start = 0
        self.started_s = 0.0
        self.starts = 0
        self.wanted = True
        self.keeper: asyncio.Task[None] | None = None

    async def start(self, grace_s: float) -> str:
        """Start the process, appending its output to the log; return why it was not started, empty if it was."""
        command = [sys.executable, "-I", "-S", subreaper.__file__, str(grace_s), *self.spec.command]
        self.process = None
        try:
            with self.log.open("ab") as output:
                self.log_start = output.tell()
                self.process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    env={**os.environ, **self.spec.environment},
                )
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread that waits for its end
            return f"not started ({error})"
        self.started_s = time.monotonic()
        self.starts += 1
        return ""

    def tail(self) -> str:
        """Return the last lines written since the latest start."""
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            file.seek(max(self.log_start, self.log.stat().st_size - 16_384))
            return "\n".join(lines_of(file.read().decode(errors="replace"))[-TAIL_LINES:])
        return ""

    def last_line(self) -> str:
        """Return the last line with text since the latest start."""
        return next((line.strip() for line in reversed(lines_of(self.tail())) if line.strip()), "")

    def send(self, number: signal.Signals) -> None:
        """Signal the subreaper, which passes it on."""
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)


class Supervisor:
    """The child processes of a run; :attr:`gave_up` raises when one of them keeps failing."""

    def __init__(self, folder: Path, drain_s: float, notify: Callable[[str], None] = lambda text: None) -> None:
        self.folder = folder
        self.notify = notify
        self.on_death: Callable[[str, str, str, bool], None] = lambda process, reason, last_line, restarts: None
        """Receives the name, the reason and the last log line of each dead process, and whether it is restarted."""
        self.drain_s = drain_s
        self.children: dict[str, Child] = {}
        self.gave_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.registry_file = folder / "processes.json"
        self.registry = ProcessRegistry(process_registry.this_process())
        self.registry_saving: asyncio.Task[None] | None = None
        self.log: Any = structlog.get_logger()
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        self.save_registry()

    async def start(self, specs: Iterable[ProcessSpec]) -> None:
        """Start processes and keep them alive until they are stopped."""
        for spec in specs:
            await self.launch(spec)
        self.save_registry()

    async def run_once(self, spec: ProcessSpec) -> None:
        """Run a process to its end; raise :class:`ProcessFailedError` with the end of its log if it fails."""
        keeper = await self.launch(spec, once=True)
        self.save_registry()
        await asyncio.shield(keeper)
        self.children.pop(spec.name, None)
        if self.gave_up.done():
            self.gave_up.result()

    async def launch(self, spec: ProcessSpec, *, once: bool = False) -> asyncio.Task[None]:
        """Start one process and return the task that keeps it alive."""
        child = self.children[spec.name] = Child(spec, self.folder / "logs" / f"{spec.name}.log", once=once)
        fault = await child.start(self.drain_s)
        child.keeper = asyncio.create_task(self.keep_alive(child, fault), name=f"keep {spec.name} alive")
        child.keeper.add_done_callback(self.fail_with)
        self.log.info("started", child=spec.name, pid=child.process and child.process.pid)
        return child.keeper

    async def keep_alive(self, child: Child, fault: str = "") -> None:
        """Restart a process with back-off whenever it dies unstopped; give up if it keeps dying.

        A start that failed, by ``fault``, is tried again as after a death.
        """
        deaths = 0
        while True:
            code = await child.process.wait() if child.process is not None else NOT_STARTED
            reason = fault or explain(code)
            if not child.wanted or (child.once and code == 0):
                self.log.info("stopped", child=child.spec.name, reason=reason)
                return
            lived_s = 0.0 if fault else time.monotonic() - child.started_s
            deaths, delay_s = (deaths, None) if child.once and not fault else after_death(deaths, lived_s, code)
            self.on_death(child.spec.name, reason, child.last_line(), delay_s is not None)
            self.log.warning(
                "died",
                child=child.spec.name,
                reason=reason,
                lived_s=round(lived_s, 1),
                restart_in_s=delay_s,
                log=child.tail(),
            )
            restart = "not started again" if delay_s is None else f"starting it again in {delay_s:g} s"
            last = f"; the last line of its log: {line}" if (line := child.last_line()) else ""
            self.notify(f"{child.spec.name} {'' if fault else 'died: '}{reason}, {restart}{last} ({child.log})")
            if delay_s is None:
                if child.spec.optional:
                    self.notify(f"the run goes on without {child.spec.name}")
                else:
                    self.give_up(child, reason, deaths)
                return
            await asyncio.sleep(delay_s)
            if not child.wanted:
                return
            fault = await child.start(self.drain_s)
            self.save_registry()

    def fail_with(self, keeper: asyncio.Task[None]) -> None:
        """Fail the run with the error of a task that keeps a process alive."""
        if not keeper.cancelled() and (error := keeper.exception()) is not None and not self.gave_up.done():
            self.gave_up.set_exception(error)

    def give_up(self, child: Child, reason: str, deaths: int) -> None:
        """Fail the run with a process's name, reason and last log lines."""
        if not self.gave_up.done():
            times = "" if deaths <= 1 else f" {deaths} times in a row"
            self.gave_up.set_exception(
                ProcessFailedError(f"{child.spec.name} died{times}: {reason}. The end of {child.log}:\n{child.tail()}")
            )

    async def stop(self, *names: str) -> None:
        """Drain these processes; their subreapers kill them after the drain time."""
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
            self.children.pop(child.spec.name, None)
        self.save_registry()

    async def stop_all(self) -> None:
        """Stop all processes, the ``last`` ones after the others."""
        await self.stop(*(name for name, child in self.children.items() if not child.spec.last))
        await self.stop(*self.children)
        if self.registry_saving is not None:
            self.registry_saving.cancel()

    def kill_all(self) -> None:
        """Have every subreaper kill at once, by a second signal."""
        for child in self.children.values():
            child.wanted = False
            child.send(signal.SIGTERM)
            child.send(signal.SIGINT)

    def save_registry(self, services: tuple[str, ...] | None = None) -> None:
        """Write the running processes to disk, where the next command finds the leftovers of a killed supervisor."""
        running = []
        for name, child in self.children.items():
            if child.process is not None and child.process.returncode is None:
                with contextlib.suppress(psutil.NoSuchProcess):
                    running.append(ProcessIdentity.of(name, child.process.pid))
        started = self.registry.service_names if services is None else services
        self.registry = ProcessRegistry(self.registry.supervisor, tuple(running), started)
        if self.registry_saving is None or self.registry_saving.done():
            try:
                write_json(self.registry_file, self.registry)
            except OSError as error:
                self.log.warning(
                    "the list of processes was not written: if this process is killed too, the next run can't end them",
                    reason=str(error),
                    try_again_s=SAVE_RETRY_S,
                )
                self.registry_saving = asyncio.create_task(self.save_registry_again(), name="save the registry")

    async def save_registry_again(self) -> None:
        """Retry to write the newest list of processes until that works."""
        while True:
            await asyncio.sleep(SAVE_RETRY_S)
            with contextlib.suppress(OSError):
                write_json(self.registry_file, self.registry)
                return


def after_death(deaths: int, lived_s: float, code: int) -> tuple[int, float | None]:
    """Return the new count of consecutive quick deaths, and the seconds until the next start; None gives up.

    A life of at least ``MIN_LIFE_S`` resets the count. An error that the user must correct is not retried.
    """
    deaths = 1 if lived_s >= MIN_LIFE_S else deaths + 1
    if code in (UserError.exit_code, AccessRefused.exit_code) or deaths >= MAX_QUICK_DEATHS:
        return deaths, None
    return deaths, min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** (deaths - 1))


def explain(code: int) -> str:
    """Describe an exit code; below 0 or above 128 it stands for a signal."""
    if code < 0 or code > 128:
        try:
            return f"killed by {signal.Signals(-code if code < 0 else code - 128).name}"
        except ValueError:
            pass
    return "ended by itself (exit code 0)" if code == 0 else f"exit code {code}"
