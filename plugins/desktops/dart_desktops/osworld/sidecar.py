"""Client of the evaluators' sidecar, which starts on demand, and again after it has ended."""

import asyncio
import contextlib
import itertools
import os
import shutil
import signal
import socket
import sys
from collections import deque
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from dart_desktops.desktop import command_line, limits, sandbox, syscall_filter
from dart_desktops.osworld.evaluator_cache import EvaluatorCache
from dart_desktops.osworld.evaluator_ports import ForwardedPorts
from dart_desktops.osworld.machine import MachineEndpoint
from dart_desktops.osworld.tasks import OsworldTask
from dart_streams.background import cancel_tasks, wait_first
from dart_streams.config.text import MALFORMED
from dart_streams.errors import ServiceUnavailable
from workers.env.environment import EnvironmentFault
from workers.env.foreign_process import kill_group

ENVIRONMENT = Path(__file__).resolve().parents[4] / ".venv/osworld"
"""Of the checkout, whatever the working folder."""
FOLDER = Path(__file__).resolve().parent
READY_S = 120.0
"""Time limit of its imports, also from a cold disk on a busy machine."""
GRACE_S = 5.0
"""Time after an evaluation's deadline at which the sidecar is killed; it ends evaluations at the deadline itself."""
BOOT = """import sys, types
path = sys.argv[1]
for name in ("dart_desktops", "dart_desktops.osworld"):
    sys.modules[name] = module = types.ModuleType(name)
    module.__path__ = []
module.__path__ = [path]
from dart_desktops.osworld.{} import main
main()
"""
"""Imports the modules of one program only: its environment lacks the project's libraries."""
LINE_BYTES = 2**24
MEMORY_MB = 6144
"""Of all evaluations of a worker together, where the system has control groups."""
CPU_SHARE = 0.5
"""Share of an evaluation's time in which it may compute; more is taken for the work of a file."""


class SidecarReady(msgspec.Struct, frozen=True):
    """First line of the sidecar: the names in its package, or the reason why it cannot be imported.

    ``origin`` says where the package is from: the version of ``make osworld``'s, or the digest of a checkout's.
    """

    metrics: frozenset[str] = frozenset()
    getters: frozenset[str] = frozenset()
    origin: str = ""
    broken: str = ""


class SidecarReply(msgspec.Struct, frozen=True):
    """Result of an evaluation: a score, or None for a fault.

    ``reason`` is that of the fault, or of a metric that cannot read what it was given and is worth 0.
    """

    id: int
    score: float | None = None
    reason: str = ""


class UnreadableResult(EnvironmentFault):
    """A metric cannot read a result, which a played episode loses; of an untouched machine it is a fault."""


class EvaluatorSidecar:
    """OSWorld's evaluators in a separate process: those of ``checkout`` if it has any, else the installed ones."""

    def __init__(self, environment: Path = ENVIRONMENT, checkout: Path | None = None) -> None:
        self.python = environment / "bin" / "python"
        self.package = evaluator_package(checkout) if checkout is not None else None
        self._files = EvaluatorCache()
        self.cache = self._files.folder
        self.user: int | None = None
        self.ready = SidecarReady()
        self.process: asyncio.subprocess.Process | None = None
        self._group = limits.ControlGroup()
        self._error_lines: deque[str] = deque(maxlen=20)
        self._waiting: dict[int, tuple[asyncio.Future[SidecarReply], ForwardedPorts]] = {}
        self._listeners: socket.socket | None = None
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

        ``cache`` is a folder in :attr:`cache` with the evaluator's reference files. The fault is an
        :class:`UnreadableResult` if the score is 0 because a metric cannot read a result.
        """
        try:
            await self.start()
        except ServiceUnavailable as error:
            raise EnvironmentFault(str(error)) from None
        host, ports = endpoint_address(endpoint)
        self._files.give(cache, self.user)
        request = {
            "task_id": task.task_id,
            "evaluator": task.evaluator.source,
            "host": f"{host}:{ports[0]}",
            "ports": ports,
            "token": endpoint.token,
            "folder": cache.name,
            "timeout_s": timeout_s,
            "cpu_s": max(1, int(CPU_SHARE * timeout_s)),
        }
        try:
            async with asyncio.timeout(timeout_s + GRACE_S):
                answer = await self._ask(request, host)
        except TimeoutError:
            await self._kill()
            raise EnvironmentFault(f"{task.page}: the sidecar of the evaluators hangs") from None
        if answer.score is None:
            raise EnvironmentFault(f"{task.page}: evaluation: {answer.reason}")
        if answer.reason and answer.score == 0:
            raise UnreadableResult(f"{task.page}: evaluation: {answer.reason}")
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
        self.user = sandbox.next_user() if os.geteuid() == 0 else None
        self._listeners, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [str(self.python.absolute()), "-I", "-B", "-c", BOOT.format("evaluator.server"), str(FOLDER)]
            command += [str(theirs.fileno()), syscall_filter.compile_filter(name_spaces=False).hex()]
            readable = [FOLDER, self.python.parents[1], self.python.resolve().parents[1]]
            if self.package is not None:
                command.append(str(self.package.parent.absolute()))
                readable.append(self.package)
            self._group = limits.make_group(memory_mb=MEMORY_MB)
            self.process = await asyncio.create_subprocess_exec(
                *self._group.command(),
                *confine_command(command, readable, self.cache, self.user),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=LINE_BYTES,
                start_new_session=True,
                env={"PATH": os.defpath, "HOME": "/tmp", "LANG": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1"},
            )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._readers = [asyncio.create_task(self._read_errors(self.process.stderr))]
        try:
            async with asyncio.timeout(READY_S):
                line = await self.process.stdout.readline()
            self.ready = msgspec.json.decode(line, type=SidecarReady)
        except (TimeoutError, *MALFORMED):
            self.ready = SidecarReady(broken=" ".join(self._error_lines) or "it says nothing")
        if self.ready.broken:
            await self._kill()
            advice = command_line.ALLOW_SPACES if "name spaces" in self.ready.broken else "run `make osworld`"
            raise ServiceUnavailable(f"OSWorld's evaluators do not start ({self.ready.broken}): {advice}")
        asyncio.get_running_loop().add_reader(self._listeners, self._take_listeners, self._listeners)
        self._readers.append(asyncio.create_task(self._read_answers(self.process, self.process.stdout)))

    async def _ask(self, request: dict[str, Any], host: str) -> SidecarReply:
        assert self.process is not None
        assert self.process.stdin is not None
        number = next(self._numbers)
        reply, ports = self._waiting[number] = asyncio.get_running_loop().create_future(), ForwardedPorts(host)
        try:
            self.process.stdin.write(msgspec.json.encode({"id": number, **request}) + b"\n")
            with contextlib.suppress(ConnectionError):  # It has ended, which its reader reports.
                await self.process.stdin.drain()
            return await reply
        finally:
            del self._waiting[number]
            await ports.close()

    def _take_listeners(self, way: socket.socket) -> None:
        """Forward what an evaluation's listeners accept; they are closed if nobody waits for it any more."""
        number, descriptors, _, _ = socket.recv_fds(way, 64, maxfds=3)
        listeners = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        if not number:
            asyncio.get_running_loop().remove_reader(way)
        elif int(number) in self._waiting:
            self._waiting[int(number)][1].open(listeners)

    async def _read_answers(self, process: asyncio.subprocess.Process, lines: asyncio.StreamReader) -> None:
        reason = "has ended"
        try:
            while line := await lines.readline():
                self._end(msgspec.json.decode(line, type=SidecarReply))
        except (ValueError, *MALFORMED) as error:  # ValueError: a line above the limit
            reason = f"writes a line that can't be read, {error}"
        # Before the waiters resume, so that their next request starts another process.
        await end_process(process)
        self._end_all(f"the sidecar {reason} ({' '.join(self._error_lines)[-300:]})")

    def _end_all(self, reason: str) -> None:
        for number in self._waiting:
            self._end(SidecarReply(id=number, reason=reason))

    def _end(self, reply: SidecarReply) -> None:
        if reply.id in self._waiting and not (waiting := self._waiting[reply.id][0]).done():
            waiting.set_result(reply)

    async def _read_errors(self, lines: asyncio.StreamReader) -> None:
        while line := await lines.readline():
            self._error_lines.append(line.decode(errors="replace").strip())

    async def _kill(self) -> None:
        if self.process is not None:
            await end_process(self.process)
        await self._group.remove()
        await cancel_tasks(*self._readers)
        if self._listeners is not None:
            asyncio.get_running_loop().remove_reader(self._listeners)
            self._listeners.close()
            self._listeners = None
        self._end_all("the sidecar was killed")


def evaluator_package(checkout: Path) -> Path | None:
    """Return the package of a checkout of OSWorld, None if it has task files only."""
    package = checkout / "desktop_env"
    return package if (package / "evaluators" / "metrics" / "__init__.py").is_file() else None


async def end_process(process: asyncio.subprocess.Process, grace_s: float = 0.0) -> None:
    """Kill a running process with its group; in a grace before that, SIGTERM lets it end by itself."""
    try:
        if grace_s and process.returncode is None:
            kill_group(process.pid, signal.SIGTERM)
            await wait_first(process.wait(), timeout_s=grace_s)
    finally:
        if process.returncode is None:
            kill_group(process.pid)
            await process.wait()


def endpoint_address(endpoint: MachineEndpoint) -> tuple[str, list[int]]:
    """Return a machine's host, and the ports of its server, browser and VLC; raise EnvironmentFault for another URL."""
    parts = urlsplit(endpoint.url)
    if parts.scheme != "http" or not parts.hostname or parts.path.strip("/"):
        raise EnvironmentFault(f"{endpoint.url}: evaluators reach a machine by http://HOST:PORT only")
    return parts.hostname, [parts.port or 80, endpoint.chromium_port, endpoint.vlc_port]


def confine_command(command: list[str], readable: list[Path], cache: Path, user: int | None) -> list[str]:
    """Confine a command by bubblewrap to read programs, ``readable`` and ``cache``, without a network.

    The evaluators parse files of the policy. With ``user`` the command runs as that user, which only root can do.
    Raises ServiceUnavailable without bubblewrap.
    """
    if sys.platform != "linux" or shutil.which("bwrap") is None:
        raise ServiceUnavailable(
            "OSWorld's evaluators parse files of the policy, so they run in bubblewrap only: "
            "install it (`make desktop`), on Linux; elsewhere run this worker in a Linux machine"
        )
    arguments = ["bwrap", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    arguments += ["--die-with-parent", "--new-session", *command_line.SYSTEM]
    for name in ("ld.so.cache", "localtime", "fonts", "ssl/certs", "mime.types"):
        arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for folder in ("/tmp", "/dev/shm"):
        arguments += ["--perms", "1777", "--tmpfs", folder]
    for path in (path.absolute() for path in readable):
        for parent in [*path.parents][-2::-1]:
            arguments += ["--perms", "0755", "--dir", str(parent)]  # By default only root may enter it.
        arguments += ["--ro-bind", str(path.resolve()), str(path)]
    arguments += ["--ro-bind", str(cache), "/cache", "--dir", "/task", "--remount-ro", "/dev", "--remount-ro", "/"]
    arguments += ["--chdir", "/tmp"]
    if user is None:
        return [*arguments, "--unshare-user", "--", *command]
    # Root binds folders that only it may enter, and the command starts without its rights.
    arguments += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    return [*arguments, "--", *sandbox.drop_privileges(user), *command]
