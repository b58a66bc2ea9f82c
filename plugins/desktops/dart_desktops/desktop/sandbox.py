"""One sandboxed desktop: its process, and requests to its server, each bounded in time and sent once."""

import asyncio
import contextlib
import importlib.util
import itertools
import os
import shutil
import socket
import stat
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
import structlog

from dart_desktops.desktop import command_line, limits, syscall_filter
from dart_desktops.desktop.call_priority import CallPriority
from dart_desktops.desktop.guest import processes
from dart_desktops.desktop.problem import Problem
from dart_streams.errors import ServiceUnavailable
from dart_streams.socket_folder import LockedFolder, remove_abandoned, socket_folder
from workers.env.backends import connection
from workers.env.environment import EnvironmentFault
from workers.env.foreign_process import kill_group

PYTHON = ("/usr/bin/python3", "-E", "-s")
"""The system's Python without settings of the user."""
LOW_PRIORITY = ("nice", "-n", str(limits.NICE))
"""Priority for systems without control groups."""
ERROR_BYTES = 1000
READY_S = 60.0
"""Time limit for the server to respond, also on a busy machine."""
ENDED_S = 30.0
"""Time limit for a sandbox to end after its last connection, also on a busy machine."""
PREFIX = "dart-sandbox-"
DATA = {"outcome", "elements", "call"}
DATA_BYTES, SCREEN_BYTES = 2**24, 2**26
"""Maximum sizes of a response with data, and of one with a screen."""
WORKAREA_MB = 256
"""Size of each writable folder."""
NOBODY = 65534
FIRST_USER = 0x70000000
"""First user of sandboxes, above the users of systems and containers."""
USERS = 256
"""Users of a worker, which it assigns to its sandboxes in turn."""
ENVIRONMENT = Path(__file__).resolve().parents[4] / ".venv/osworld-guest"
VSCODE = Path(__file__).resolve().parents[4] / ".venv/vscode/node_modules/code-server/lib/vscode"
UID_MAP = Path("/proc/self/uid_map")
_user_numbers = itertools.count()

log = structlog.get_logger()


class Sandbox:
    """A sandbox with its server, usable until a call fails. The environment starts its session."""

    def __init__(self, width: int, height: int, call_timeout_s: float) -> None:
        self.size = width, height
        self.call_timeout_s = call_timeout_s
        self.process: asyncio.subprocess.Process | None = None
        self.group: limits.ControlGroup | None = None
        self.priority = CallPriority(limits.ControlGroup())
        self._folder: LockedFolder | None = None
        self._session: aiohttp.ClientSession | None = None
        self._lifeline: int | None = None
        """Pipe to the server, which ends once this end is closed, also if this worker is killed. Bubblewrap's
        ``--die-with-parent`` applies only after its program has started."""

    async def start(self) -> None:
        """Start the sandbox and wait for its server; raise EnvironmentFault if it does not come up."""
        self._folder = LockedFolder(PREFIX, socket_folder())
        errors = f"{self._folder.folder}/errors"
        self._session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(self.socket))
        self.group = limits.make_group()
        self.priority = CallPriority(self.group)
        with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as files:
            listener.bind(self.socket)
            listener.listen()
            descriptors = {name: files.enter_context(memory_file(data)) for name, data in own_files().items()}
            refusals = files.enter_context(memory_file(syscall_filter.compile_filter()))
            arguments = command_line.command(descriptors, WORKAREA_MB, refusals, further_packages(), vscode_folder())
            lifeline, self._lifeline = os.pipe()
            files.callback(os.close, lifeline)
            files.callback(os.close, errors_file := os.open(errors, os.O_CREAT | os.O_WRONLY, 0o600))
            serve = [*PYTHON, "-m", command_line.SERVER, str(listener.fileno()), str(lifeline), *map(str, self.size)]
            starting = asyncio.ensure_future(
                asyncio.create_subprocess_exec(
                    *[*self.group.command(), *drop_privileges(), *LOW_PRIORITY, *arguments, *serve],
                    pass_fds=(listener.fileno(), lifeline, refusals, *descriptors.values()),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=errors_file,
                    start_new_session=True,
                    env={"PATH": os.defpath},
                )
            )
            try:
                self.process = await asyncio.shield(starting)
            except asyncio.CancelledError:
                # Cancelling it would kill this process but not its children; `stop` ends all.
                self.process = await starting
                raise
        try:
            await self.request("GET", "ready", timeout_s=READY_S)
        except EnvironmentFault as fault:
            output = read_end(errors)
            hint = "; `make desktop` installs what it needs"
            raise EnvironmentFault(f"the desktop does not come up: {fault} ({output}){hint}") from None

    async def request(
        self, method: str, endpoint: str, body: Mapping[str, Any] | None = None, timeout_s: float | None = None
    ) -> tuple[bytes, Mapping[str, str]]:
        """Send a request once, and return the response's body and headers; raise EnvironmentFault if it fails."""
        with self.priority.during_call():
            return await self._send(method, endpoint, body, timeout_s)

    async def _send(
        self, method: str, endpoint: str, body: Mapping[str, Any] | None, timeout_s: float | None
    ) -> tuple[bytes, Mapping[str, str]]:
        if self._session is None or self.process is None:
            raise EnvironmentFault("the desktop was not started")
        limit_s = timeout_s or self.call_timeout_s
        bound = aiohttp.ClientTimeout(total=limit_s)
        request = self._session.request(method, f"http://desktop/{endpoint}", json=body, timeout=bound)
        limit_bytes = DATA_BYTES if endpoint in DATA else SCREEN_BYTES
        answer = asyncio.ensure_future(read_response(request, limit_bytes, endpoint))
        # Retrieves the exception of a request that is cancelled below.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        ended = asyncio.ensure_future(self.process.wait())
        try:
            await asyncio.wait({answer, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise EnvironmentFault(f"the desktop has ended, {why_ended(ended.result())}")
            status, content, headers = answer.result()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            if isinstance(error, (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)):
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
        """Path of the server's Unix socket."""
        return f"{self._folder.folder}/http" if self._folder is not None else ""

    @property
    def alive(self) -> bool:
        """Whether it has started and not ended."""
        return self.process is not None and self.process.returncode is None

    @property
    def exceeded(self) -> str:
        """The limit that its processes have reached, empty if none; its further behavior is undefined then."""
        return self.group.exceeded() if self.group is not None else ""

    async def stop(self) -> None:
        """End all its processes; never raises."""
        if self._session is not None:
            await self._session.close()
        if self.process is not None and self.process.returncode is None:
            kill_group(self.process.pid)
            await self.process.wait()
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
        if self.group is not None:
            await self.group.remove()
        if self._folder is not None:
            await asyncio.to_thread(self._folder.remove)


def drop_privileges(user: int | None = None) -> list[str]:
    """Return the beginning of a command that must not run as root, by default as a new user; empty if it does not."""
    if os.geteuid() != 0:
        return []
    user = user or next_user()
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs"]


def next_user(uid_map: Path = UID_MAP) -> int:
    """Return a user that no other sandbox has, so that the kernel's limits for each user apply to one desktop.

    Returns nobody where this worker's namespace lacks such users.
    """
    user = FIRST_USER + os.getpid() * USERS + next(_user_numbers) % USERS
    ranges = ([int(word) for word in line.split()] for line in uid_map.read_text(encoding="utf-8").splitlines())
    return user if any(first <= user < first + count for first, _, count in ranges) else NOBODY


def why_ended(code: int) -> str:
    """Return the reason for an exit code."""
    return (
        f"it had opened more than {processes.MAX_TERMINALS} terminals"
        if code == processes.EXCEEDED
        else f"exit code {code}"
    )


async def read_response(request: Any, limit_bytes: int, endpoint: str) -> tuple[int, bytes, Mapping[str, str]]:
    """Return status, body and headers of the response to a request; raise AnswerTooLong beyond ``limit_bytes``."""
    async with request as response:
        return response.status, await connection.read(response, limit_bytes, endpoint), response.headers


def read_end(path: str) -> str:
    """Return the last bytes of a file as text."""
    return Path(path).read_bytes()[-ERROR_BYTES:].decode(errors="replace").strip()


@contextlib.contextmanager
def memory_file(content: bytes) -> Iterator[int]:
    """Yield a file descriptor to read ``content`` from."""
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
    guest = {path.name: path.read_bytes() for path in folder.glob("*.py")}
    return command_line.own_files(guest, {name: package_source(name) for name in command_line.PACKAGES})


@cache
def further_packages(environment: Path = ENVIRONMENT) -> str:
    """Return the folder of packages that `make osworld` installs for programs of agents, empty without.

    A worker that is root drops its rights, so that the folder must be readable for any user.
    """
    return readable_folder(next(environment.glob("lib/python3.*/site-packages"), None))


@cache
def vscode_folder(folder: Path = VSCODE) -> str:
    """Return the folder of VS Code's server that `make osworld` installs, empty without."""
    return readable_folder(folder if (folder / "out/server-main.js").exists() else None)


def readable_folder(folder: Path | None) -> str:
    """Return a folder that the desktops' user can read, empty if there is none."""
    if folder is None:
        return ""
    closed = [path for path in (folder, *folder.parents) if not path.stat().st_mode & stat.S_IXOTH]
    if closed and os.geteuid() == 0:
        reason = f"{closed[-1]} may not be entered by the desktops' user"
        log.warning("desktops lack the packages of make osworld", reason=reason)
        return ""
    return str(folder)


def package_source(name: str) -> bytes:
    """Return the source of an installed package that is one file, without importing it."""
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise ServiceUnavailable(f"the Python package {name} is missing, which desktops need: run `make setup`")
    return Path(found.origin).read_bytes()


def sweep() -> None:
    """Remove the control groups and folders of killed workers."""
    limits.sweep()
    remove_abandoned(PREFIX, socket_folder())


def require_programs() -> None:
    """Raise ServiceUnavailable if a program of every desktop is missing."""
    if missing := missing_programs(command_line.PROGRAMS):
        raise ServiceUnavailable(f"the desktop needs {', '.join(missing)}: run `make desktop`")


def require_for(problem: Problem) -> None:
    """Raise EnvironmentFault if a program of a task is missing."""
    if missing := missing_programs(problem.programs):
        raise EnvironmentFault(f"the task needs {', '.join(missing)}: run `make desktop`")


def missing_programs(programs: Iterable[str]) -> list[str]:
    """Return the programs that are not installed."""
    return [name for name in programs if shutil.which(name) is None]
