"""Client of the evaluators' sidecar, which starts on demand, and again after it has ended."""

import asyncio
import contextlib
import itertools
import os
import shutil
import signal
import sys
from collections import deque
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import structlog

from dart_streams.background import cancel_tasks
from dart_streams.errors import ServiceUnavailable
from workers.env.backends.desktop import command_line
from workers.env.backends.osworld.evaluator_cache import EvaluatorCache
from workers.env.backends.osworld.machine import MachineEndpoint
from workers.env.backends.osworld.tasks import OsworldTask
from workers.env.environment import EnvironmentFault

ENVIRONMENT = Path(__file__).resolve().parents[4] / ".venv/osworld"
"""Of the checkout, whatever the working folder."""
FOLDER = Path(__file__).resolve().parent
READY_S = 120.0
"""Time limit of its imports, also from a cold disk on a busy machine."""
GRACE_S = 5.0
"""Time after an evaluation's deadline at which the sidecar is killed; it ends evaluations at the deadline itself."""
BOOT = """import sys, types
path = sys.argv[1]
for name in ("workers", "workers.env", "workers.env.backends.osworld"):
    sys.modules[name] = module = types.ModuleType(name)
    module.__path__ = []
module.__path__ = [path]
from workers.env.backends.osworld.{} import main
main()
"""
"""Imports the modules of one program only: its environment lacks the project's libraries."""
LINE_BYTES = 2**24

log = structlog.get_logger()


class SidecarReady(msgspec.Struct, frozen=True):
    """First line of the sidecar: the names in its package, or the reason why it cannot be imported.

    ``origin`` says where the package is from: the version of ``make osworld``'s, or the digest of a checkout's.
    """

    metrics: frozenset[str] = frozenset()
    getters: frozenset[str] = frozenset()
    origin: str = ""
    broken: str = ""


class SidecarReply(msgspec.Struct, frozen=True):
    """Result of an evaluation: a score, or a fault."""

    id: int
    score: float | None = None
    fault: str = ""


class EvaluatorSidecar:
    """OSWorld's evaluators in a separate process: those of ``checkout`` if it has any, else the installed ones."""

    def __init__(self, environment: Path = ENVIRONMENT, checkout: Path | None = None) -> None:
        self.python = environment / "bin" / "python"
        self.package = evaluator_package(checkout) if checkout is not None else None
        self._files = EvaluatorCache()
        self.cache = self._files.folder
        self.ready = SidecarReady()
        self.process: asyncio.subprocess.Process | None = None
        self._error_lines: deque[str] = deque(maxlen=20)
        self._waiting: dict[int, asyncio.Future[SidecarReply]] = {}
        self._numbers = itertools.count(1)
        self._readers: list[asyncio.Task[None]] = []
        self._starting: asyncio.Task[None] | None = None

    async def start(self) -> SidecarReady:
        """Start the sidecar if it does not run; raise ServiceUnavailable if that is impossible.

        The cancellation of an episode does not cancel the start, for which others may wait.
        """
        if self._starting is None or (self._starting.done() and not self.running):
            self._starting = asyncio.create_task(self._start())
        await asyncio.shield(self._starting)
        return self.ready

    @property
    def running(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.returncode is None

    async def evaluate(self, task: OsworldTask, endpoint: MachineEndpoint, cache: Path, timeout_s: float) -> float:
        """Return OSWorld's score of a machine's present state; raise EnvironmentFault if there is none in time.

        ``cache`` is a folder in :attr:`cache` with the evaluator's reference files.
        """
        try:
            await self.start()
        except ServiceUnavailable as error:
            raise EnvironmentFault(str(error)) from None
        request = {
            "task_id": task.task_id,
            "evaluator": task.evaluator.source,
            "endpoint": endpoint_address(endpoint),
            "cache": str(cache),
            "timeout_s": timeout_s,
        }
        try:
            async with asyncio.timeout(timeout_s + GRACE_S):
                answer = await self._ask(request)
        except TimeoutError:
            await self._kill()
            raise EnvironmentFault(f"{task.page}: the sidecar of the evaluators hangs") from None
        if answer.score is None:
            raise EnvironmentFault(f"{task.page}: evaluation: {answer.fault}")
        return answer.score

    async def stop(self) -> None:
        """Stop the sidecar and remove its cache; never raises."""
        if self._starting is not None:
            await cancel_tasks(self._starting)
        await self._kill()
        self._files.remove()

    async def _start(self) -> None:
        if not self.python.exists():
            raise ServiceUnavailable(f"OSWorld's evaluators need {self.python.parents[1]}: run `make osworld`")
        await self._kill()
        command = [str(self.python.absolute()), "-I", "-B", "-c", BOOT.format("evaluator.server"), str(FOLDER)]
        readable = [FOLDER, self.python.parents[1], self.python.resolve().parents[1]]
        if self.package is not None:
            command.append(str(self.package.parent.absolute()))
            readable.append(self.package)
        self.process = await asyncio.create_subprocess_exec(
            *confine_command(command, readable, self.cache),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=LINE_BYTES,
            start_new_session=True,
            env={"PATH": os.defpath, "HOME": str(self.cache), "LANG": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1"},
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._readers = [asyncio.create_task(self._read_errors(self.process.stderr))]
        try:
            async with asyncio.timeout(READY_S):
                line = await self.process.stdout.readline()
            self.ready = msgspec.json.decode(line, type=SidecarReady)
        except (TimeoutError, msgspec.DecodeError):
            self.ready = SidecarReady(broken=" ".join(self._error_lines) or "it says nothing")
        if self.ready.broken:
            await self._kill()
            raise ServiceUnavailable(f"OSWorld's evaluators do not start ({self.ready.broken}): run `make osworld`")
        self._readers.append(asyncio.create_task(self._read_answers(self.process, self.process.stdout)))

    async def _ask(self, request: dict[str, Any]) -> SidecarReply:
        assert self.process is not None
        assert self.process.stdin is not None
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self.process.stdin.write(msgspec.json.encode({"id": number, **request}) + b"\n")
            with contextlib.suppress(ConnectionError):  # It has ended, which its reader reports.
                await self.process.stdin.drain()
            return await answer
        finally:
            del self._waiting[number]

    async def _read_answers(self, process: asyncio.subprocess.Process, lines: asyncio.StreamReader) -> None:
        while line := await lines.readline():
            answer = msgspec.json.decode(line, type=SidecarReply)
            if (waiting := self._waiting.get(answer.id)) is not None and not waiting.done():
                waiting.set_result(answer)
        # Before the waiters resume, so that their next request starts another process.
        await end_process(process)
        for number, waiting in self._waiting.items():
            if not waiting.done():
                waiting.set_result(
                    SidecarReply(id=number, fault=f"the sidecar has ended ({' '.join(self._error_lines)[-300:]})")
                )

    async def _read_errors(self, lines: asyncio.StreamReader) -> None:
        while line := await lines.readline():
            self._error_lines.append(line.decode(errors="replace").strip())

    async def _kill(self) -> None:
        if self.process is not None:
            await end_process(self.process)
        await cancel_tasks(*self._readers)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(SidecarReply(id=0, fault="the sidecar was killed"))


def evaluator_package(checkout: Path) -> Path | None:
    """Return the package of a checkout of OSWorld, None if it has task files only."""
    package = checkout / "desktop_env"
    return package if (package / "evaluators" / "metrics" / "__init__.py").is_file() else None


async def end_process(process: asyncio.subprocess.Process) -> None:
    """Kill a running process with its group."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def endpoint_address(endpoint: MachineEndpoint) -> dict[str, Any]:
    """Return an endpoint in the form of OSWorld's code; raise EnvironmentFault if it cannot reach it."""
    parts = urlsplit(endpoint.url)
    if parts.scheme != "http" or not parts.hostname or parts.path.strip("/"):
        raise EnvironmentFault(f"{endpoint.url}: evaluators reach a machine by http://HOST:PORT only")
    ports = {"server": parts.port or 80, "chromium": endpoint.chromium_port, "vlc": endpoint.vlc_port}
    return {"host": parts.hostname, "token": endpoint.token, **ports}


def confine_command(command: list[str], readable: list[Path], writable: Path) -> list[str]:
    """Confine a command by bubblewrap, if installed, to read programs and ``readable``, and to write ``writable``.

    The evaluators parse files of the policy. They keep the network, by which they ask the machine.
    """
    if sys.platform != "linux" or shutil.which("bwrap") is None:
        log.warning("the evaluators are not confined", reason="there is no bubblewrap: `make desktop` installs it")
        return command
    arguments = ["bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    arguments += ["--die-with-parent", "--new-session", *command_line.SYSTEM]
    for path in ("/etc/ld.so.cache", "/etc/localtime", "/etc/fonts", "/etc/ssl/certs", "/etc/mime.types"):
        arguments += ["--ro-bind-try", path, path]
    arguments += ["--tmpfs", "/tmp"]
    for folder in readable:
        arguments += ["--ro-bind", str(folder.resolve()), str(folder.absolute())]
    return [*arguments, "--bind", str(writable), str(writable), "--chdir", str(writable), "--", *command]
