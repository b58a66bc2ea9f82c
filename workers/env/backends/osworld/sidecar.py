"""The evaluators' sidecar as an environment worker uses it: started when first needed, and again after it has ended."""

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

from dart_streams.errors import ServiceUnavailable
from workers.env.backends.osworld.connection import MachineEndpoint
from workers.env.backends.osworld.evaluator_cache import EvaluatorCache
from workers.env.backends.osworld.tasks import OsworldTask
from workers.env.environment import EnvironmentFault

ENVIRONMENT = Path(".venv/osworld")
FOLDER = Path(__file__).resolve().parent
READY_S = 120.0
"""Until the packages are imported, also from a cold disk on a machine that does other work."""
GRACE_S = 5.0
"""Beyond an evaluation's deadline, at which the sidecar itself ends it: then the sidecar is killed."""
BOOT = """import sys, types
path = sys.argv.pop(1)
for name in ("workers", "workers.env", "workers.env.backends.osworld"):
    sys.modules[name] = module = types.ModuleType(name)
    module.__path__ = []
module.__path__ = [path]
from workers.env.backends.osworld.evaluator.server import main
main()
"""
"""Its own modules by their own names, and nothing else of the project, whose libraries are not its environment's."""
LINE_BYTES = 2**24

log = structlog.get_logger()


class SidecarReady(msgspec.Struct, frozen=True):
    """What the sidecar's first line says: the names that its package has, or why it cannot be imported."""

    metrics: frozenset[str] = frozenset()
    getters: frozenset[str] = frozenset()
    broken: str = ""


class SidecarReply(msgspec.Struct, frozen=True):
    """The end of an evaluation: a score, or the fault because of which there is none."""

    id: int
    score: float | None = None
    fault: str = ""


class EvaluatorSidecar:
    """OSWorld's evaluators in a process of their own; ``package`` is a checkout whose evaluators are used instead."""

    def __init__(self, environment: Path = ENVIRONMENT, package: Path | None = None) -> None:
        self.python = environment / "bin" / "python"
        self.package = package
        self._files = EvaluatorCache()
        self.cache = self._files.folder
        self.ready = SidecarReady()
        self.process: asyncio.subprocess.Process | None = None
        self._said: deque[str] = deque(maxlen=20)
        self._waiting: dict[int, asyncio.Future[SidecarReply]] = {}
        self._numbers = itertools.count(1)
        self._readers: list[asyncio.Task[None]] = []
        self._starting: asyncio.Task[None] | None = None

    async def start(self) -> SidecarReady:
        """Start it if it does not run; raise ServiceUnavailable with what to do if it cannot be started.

        An episode that is cancelled meanwhile does not cancel the start, which others may wait for.
        """
        if self._starting is None or (self._starting.done() and not self.running):
            self._starting = asyncio.create_task(self._start())
        await asyncio.shield(self._starting)
        return self.ready

    @property
    def running(self) -> bool:
        """Whether there is a process that has not ended."""
        return self.process is not None and self.process.returncode is None

    async def evaluate(
        self, task: OsworldTask, endpoint: MachineEndpoint, cache: Path, timeout_s: float, gave_up: bool = False
    ) -> float:
        """Return OSWorld's score of a machine's present state; raise EnvironmentFault if there is none in time.

        ``cache`` is a folder of :attr:`cache`, with what the evaluator compares with.
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
            "gave_up": gave_up,
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
        """End it and remove its cache; never raises."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        await self._kill()
        self._files.remove()

    async def _start(self) -> None:
        if not self.python.exists():
            raise ServiceUnavailable(f"OSWorld's evaluators need {self.python.parents[1]}: run `make osworld`")
        await self._kill()
        package = str(self.package.resolve()) if self.package else ""
        command = [str(self.python.absolute()), "-I", "-c", BOOT, str(FOLDER), package]
        readable = [FOLDER, self.python.parents[1], self.python.resolve().parents[1], self.package]
        self.process = await asyncio.create_subprocess_exec(
            *confine_command(command, [path for path in readable if path], self.cache),
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
            self.ready = SidecarReady(broken=" ".join(self._said) or "it says nothing")
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
            with contextlib.suppress(ConnectionError):  # It has ended, which its reader says.
                await self.process.stdin.drain()
            return await answer
        finally:
            del self._waiting[number]

    async def _read_answers(self, process: asyncio.subprocess.Process, lines: asyncio.StreamReader) -> None:
        while line := await lines.readline():
            answer = msgspec.json.decode(line, type=SidecarReply)
            if (waiting := self._waiting.get(answer.id)) is not None and not waiting.done():
                waiting.set_result(answer)
        # Before its waiters learn of it: the next request then finds that it has ended, and starts another.
        await end_process(process)
        for number, waiting in self._waiting.items():
            if not waiting.done():
                waiting.set_result(
                    SidecarReply(id=number, fault=f"the sidecar has ended ({' '.join(self._said)[-300:]})")
                )

    async def _read_errors(self, lines: asyncio.StreamReader) -> None:
        while line := await lines.readline():
            self._said.append(line.decode(errors="replace").strip())

    async def _kill(self) -> None:
        if self.process is not None:
            await end_process(self.process)
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(SidecarReply(id=0, fault="the sidecar was killed"))


async def end_process(process: asyncio.subprocess.Process) -> None:
    """Kill a process and its group, if it has not ended."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def endpoint_address(endpoint: MachineEndpoint) -> dict[str, Any]:
    """Return an endpoint as OSWorld's code reaches it; raise EnvironmentFault if it cannot."""
    parts = urlsplit(endpoint.url)
    if parts.scheme != "http" or not parts.hostname or parts.path.strip("/"):
        raise EnvironmentFault(f"{endpoint.url}: evaluators reach a machine by http://HOST:PORT only")
    ports = {"server": parts.port or 80, "chromium": endpoint.chromium_port, "vlc": endpoint.vlc_port}
    return {"host": parts.hostname, "token": endpoint.token, **ports}


def confine_command(command: list[str], readable: list[Path], writable: Path) -> list[str]:
    """Return a command that may read programs and ``readable``, and write ``writable`` only, where bubblewrap is there.

    It judges files that a policy has made. It keeps the network, for it asks the machine.
    """
    if sys.platform != "linux" or shutil.which("bwrap") is None:
        log.warning("the evaluators are not confined", reason="there is no bubblewrap: `make desktop` installs it")
        return command
    arguments = ["bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    arguments += ["--die-with-parent", "--new-session", "--ro-bind", "/usr", "/usr"]
    for name in ("bin", "lib", "lib64", "sbin"):
        arguments += ["--symlink", f"usr/{name}", f"/{name}"]
    for path in ("/etc/ld.so.cache", "/etc/localtime", "/etc/fonts", "/etc/ssl/certs", "/etc/mime.types"):
        arguments += ["--ro-bind-try", path, path]
    arguments += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    for folder in readable:
        arguments += ["--ro-bind", str(folder.resolve()), str(folder.absolute())]
    return [*arguments, "--bind", str(writable), str(writable), "--chdir", str(writable), "--", *command]
