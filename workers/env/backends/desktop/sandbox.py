"""One sandboxed desktop: its process, and requests to the server inside, each bounded and sent once."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp

from dart_streams.errors import ServiceUnavailable
from dart_streams.socket_folder import socket_folder
from workers.env.backends.desktop import command_line, host_user, limits, syscall_filter
from workers.env.backends.desktop.guest import terminals
from workers.env.backends.desktop.problem import Problem
from workers.env.environment import EnvironmentFault

PYTHON = ("/usr/bin/python3", "-E", "-s")
"""The system's, without settings of the user."""
LOW_PRIORITY = ("nice", "-n", str(limits.NICE))
"""Where there is no control group."""
ERROR_BYTES = 1000
READY_S = 20.0
"""How long the server inside may take to answer, also on a machine that does other work."""
ENDED_S = 1.0
"""How long after its last connection a sandbox may take to end."""
STARTING_S = 60.0
"""A folder is as old as this before it is looked at whether somebody serves its socket."""
WORKAREA_MB = 256
"""Of each writable folder."""


class Sandbox:
    """A sandbox with its server; usable until a call fails. Its session is started by the environment."""

    def __init__(self, width: int, height: int, call_timeout_s: float) -> None:
        self.size = width, height
        self.call_timeout_s = call_timeout_s
        self.process: asyncio.subprocess.Process | None = None
        self.group: limits.ControlGroup | None = None
        self._folder = ""
        self._session: aiohttp.ClientSession | None = None
        self._lifeline: int | None = None
        """The end of a pipe that nobody else has: the server inside ends once it is closed, also if this worker is
        killed. Bubblewrap's ``--die-with-parent`` holds only from when its program starts."""

    async def start(self) -> None:
        """Start the sandbox and wait for its server; raise EnvironmentFault if it does not come up."""
        self._folder = tempfile.mkdtemp(prefix=limits.PREFIX, dir=socket_folder())
        path, errors = f"{self._folder}/http", f"{self._folder}/errors"
        self._session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(path))
        self.group = limits.make_group()
        with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as files:
            listener.bind(path)
            listener.listen()
            descriptors = {name: files.enter_context(memory_file(data)) for name, data in own_files().items()}
            refusals = files.enter_context(memory_file(syscall_filter.compile_filter()))
            arguments = command_line.command(descriptors, WORKAREA_MB, refusals)
            lifeline, self._lifeline = os.pipe()
            files.callback(os.close, lifeline)
            serve = [*PYTHON, "-m", command_line.SERVER, str(listener.fileno()), str(lifeline), *map(str, self.size)]
            starting = asyncio.ensure_future(
                asyncio.create_subprocess_exec(
                    *[*self.group.command(), *drop_privileges(), *LOW_PRIORITY, *arguments, *serve],
                    pass_fds=(listener.fileno(), lifeline, refusals, *descriptors.values()),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=files.enter_context(open_new_file(errors)),
                    start_new_session=True,
                    env={"PATH": os.defpath},
                )
            )
            try:
                self.process = await asyncio.shield(starting)
            except asyncio.CancelledError:
                # Cancelled itself it would kill this one process, but not what that has started: `stop` ends all.
                self.process = await starting
                raise
        try:
            await self.request("GET", "ready", timeout_s=READY_S)
        except EnvironmentFault as fault:
            said = read_end(errors)
            hint = "; `make desktop` installs what it needs"
            raise EnvironmentFault(f"the desktop does not come up: {fault} ({said}){hint}") from None

    async def request(
        self, method: str, endpoint: str, body: Mapping[str, Any] | None = None, timeout_s: float | None = None
    ) -> tuple[bytes, Mapping[str, str]]:
        """Send a request once, and return the answer's body and headers; raise EnvironmentFault for any other end."""
        if self._session is None:
            raise EnvironmentFault("the desktop was not started")
        limit_s = timeout_s or self.call_timeout_s
        bound = aiohttp.ClientTimeout(total=limit_s)
        request = self._session.request(method, f"http://desktop/{endpoint}", json=body, timeout=bound)
        answer = asyncio.ensure_future(read_response(request))
        # One that is cancelled below may end by a time-out of its own, which then nobody waits for.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        ended = asyncio.ensure_future(self._ended())
        try:
            await asyncio.wait({answer, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise EnvironmentFault(f"the desktop has ended, {why_ended(ended.result())}")
            status, content, headers = answer.result()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            if isinstance(error, aiohttp.ServerDisconnectedError):
                await asyncio.wait({ended}, timeout=ENDED_S)
            if ended.done():
                raise EnvironmentFault(f"the desktop has ended, {why_ended(ended.result())}") from None
            late = f"no answer within {limit_s:g} s" if isinstance(error, TimeoutError) else ""
            raise EnvironmentFault(f"{endpoint}: {late or str(error) or type(error).__name__}") from None
        finally:
            answer.cancel()
            ended.cancel()
        if reached := self.exceeded:
            raise EnvironmentFault(f"the desktop has reached the bound of {reached}")
        if status != 200:
            raise EnvironmentFault(f"{endpoint}: {content.decode(errors='replace')[:300]}")
        return content, headers

    @property
    def socket(self) -> str:
        """The path of the Unix socket on which the server inside answers."""
        return f"{self._folder}/http"

    @property
    def alive(self) -> bool:
        """Whether it was started and has not ended."""
        return self.process is not None and self.process.returncode is None

    @property
    def exceeded(self) -> str:
        """The bound that its processes have run into, empty if none; what works in it then is a matter of chance."""
        return self.group.exceeded() if self.group is not None else ""

    async def stop(self) -> None:
        """End everything in it; never raises."""
        if self._session is not None:
            await self._session.close()
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            await self.process.wait()
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
        if self.group is not None:
            await self.group.remove()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _ended(self) -> int:
        assert self.process is not None
        return await self.process.wait()


def drop_privileges() -> list[str]:
    """Return the beginning of a command that is not to run as root, empty if this worker does not either.

    Even what a sandbox may read of the host, root's files are not.
    """
    if os.geteuid() != 0:
        return []
    user = host_user.next_user()
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs"]


def why_ended(code: int) -> str:
    """Return an exit code in words."""
    return (
        f"it had opened more than {terminals.MAX_TERMINALS} terminals"
        if code == terminals.EXCEEDED
        else f"exit code {code}"
    )


async def read_response(request: Any) -> tuple[int, bytes, Mapping[str, str]]:
    """Return status, body and headers of the answer to a request."""
    async with request as response:
        return response.status, await response.read(), response.headers


@contextlib.contextmanager
def open_new_file(path: str) -> Iterator[int]:
    """A file descriptor to write to a new file."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_end(path: str) -> str:
    """Return the end of a file."""
    return Path(path).read_bytes()[-ERROR_BYTES:].decode(errors="replace").strip()


@contextlib.contextmanager
def memory_file(content: bytes) -> Iterator[int]:
    """A file descriptor to read ``content`` from."""
    descriptor = os.memfd_create("dart-desktop")
    try:
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


@cache
def own_files() -> dict[str, bytes]:
    """Return the files of every sandbox, by path."""
    folder = Path(__file__).parent / "guest"
    return command_line.own_files({path.name: path.read_bytes() for path in folder.glob("*.py")})


def sweep() -> None:
    """Remove what workers left that were killed: groups of nothing, and folders whose socket nobody serves."""
    limits.sweep()
    for folder in socket_folder().glob(f"{limits.PREFIX}*"):
        if folder.stat().st_mtime > time.time() - STARTING_S:
            continue
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(folder / "http"))
            except ConnectionRefusedError:
                shutil.rmtree(folder, ignore_errors=True)
            except OSError:
                continue  # It has none yet, or is another user's.


def require_programs() -> None:
    """Raise ServiceUnavailable if a program is missing that every desktop needs."""
    if missing := missing_programs(command_line.PROGRAMS):
        raise ServiceUnavailable(f"the desktop needs {', '.join(missing)}: run `make desktop`")


def require_for(problem: Problem) -> None:
    """Raise EnvironmentFault if a program is missing that a task needs."""
    if missing := missing_programs(problem.programs):
        raise EnvironmentFault(f"the task needs {', '.join(missing)}: run `make desktop`")


def missing_programs(programs: Iterable[str]) -> list[str]:
    """Return those programs that are not installed."""
    return [name for name in programs if shutil.which(name) is None]
