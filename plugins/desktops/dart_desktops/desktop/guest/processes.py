"""The processes and terminals of the sandbox."""

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

BUSY = frozenset("RD")
"""States of a thread that computes, or waits for a processor or a disk."""
KILL_S = 30.0
POLL_INTERVAL_S = 0.002
MAX_TERMINALS = 64
"""Maximum number of a sandbox's terminals: the kernel has some 3,000 for all sandboxes together."""
TERMINALS_INTERVAL_S = 0.5
EXCEEDED = 65
"""Exit code of a sandbox that has opened more terminals."""
TERMINALS = "/dev/pts"
IPC_RMID = 0
reaping = threading.RLock()
"""Held while a process is started, reaped or signalled: once reaped, its id may be another's."""
owned: "dict[int, OwnedProcess]" = {}


class OwnedProcess(subprocess.Popen[bytes]):
    """A process whose exit code is kept for its owner, whoever reaps it. A lost exit code is an error, never 0."""

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        with reaping:
            super().__init__(command, **options)
            owned[self.pid] = self

    def poll(self) -> int | None:
        """Return the exit code, None while it runs; raise ChildProcessError if it is lost."""
        with reaping:
            if self.returncode is None:
                try:
                    pid, status = os.waitpid(self.pid, os.WNOHANG)
                except ChildProcessError:
                    owned.pop(self.pid, None)
                    raise ChildProcessError(f"the exit code of {self.args!r} is lost") from None
                if pid:
                    del owned[pid]
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code; raise TimeoutExpired, and ChildProcessError if it is lost."""
        began = time.monotonic()
        while (code := self.poll()) is None:
            if timeout is not None and time.monotonic() > began + timeout:
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(POLL_INTERVAL_S)
        return code


def list_pids() -> list[int]:
    """Return the ids of all processes."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def thread_state(stat: str) -> str:
    """Return the state in a line of ``/proc/*/stat``, whose command name may contain any character."""
    return stat[stat.rindex(")") + 2]


class Activity:
    """Finds threads that compute; the one found last is checked first, as it often still computes."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self.proc = str(proc)
        self.last = ""

    def busy(self, besides: Iterable[int]) -> bool:
        """Return whether a thread of any process except ``besides`` computes or waits to."""
        left_out = {str(pid) for pid in besides}
        if self.last and self.last.split("/")[-4] not in left_out and computes(self.last):
            return True
        self.last = next(filter(computes, self._threads(left_out)), "")
        return bool(self.last)

    def _threads(self, left_out: set[str]) -> Iterator[str]:
        for pid in list_names(self.proc):
            if pid.isdecimal() and pid not in left_out:
                threads = f"{self.proc}/{pid}/task"
                with contextlib.suppress(OSError):
                    yield from (f"{threads}/{thread}/stat" for thread in list_names(threads))


def computes(stat: str) -> bool:
    """Return whether a thread computes, or waits for a processor or a disk; False if it has ended."""
    try:
        return thread_state(read(stat)) in BUSY
    except OSError:
        return False


def list_names(folder: str) -> list[str]:
    """Return the names in a folder."""
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]


def read(path: str) -> str:
    """Read a short file without a buffer: threads are polled often."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 4096).decode(errors="replace")
    finally:
        os.close(descriptor)


def end_all(besides: Iterable[int]) -> None:
    """Kill every process except ``besides``; raise TimeoutError if one does not end.

    Each is stopped before any is killed, and new ones are killed too, so a fork bomb ends. This process is the first of
    the sandbox: it inherits and reaps all orphans.
    """
    excluded = set(besides)
    deadline = time.monotonic() + KILL_S
    while others := [pid for pid in list_pids() if pid not in excluded]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(others)} processes do not end, {others[0]} among them")
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in others:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        reap_ended()
        time.sleep(POLL_INTERVAL_S)


def remove_shared() -> None:
    """Remove the shared memory, semaphores and queues of System V, which outlive their processes."""
    libc = ctypes.CDLL(None)
    calls = {
        "shm": (libc.shmctl, IPC_RMID, None),
        "sem": (libc.semctl, 0, IPC_RMID),
        "msg": (libc.msgctl, IPC_RMID, None),
    }
    for kind, (control, *arguments) in calls.items():
        with contextlib.suppress(FileNotFoundError):  # A kernel without it.
            for line in Path(f"/proc/sysvipc/{kind}").read_text(encoding="utf-8").splitlines()[1:]:
                control(int(line.split()[1]), *arguments)


def reap_ended() -> None:
    """Reap all children that have ended: orphans, and those in :data:`owned`, which keep their exit codes."""
    with reaping, contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid in owned:
                owned[ended.si_pid].poll()
            else:
                os.waitpid(ended.si_pid, os.WNOHANG)


def count_terminals(folder: str = TERMINALS) -> int:
    """Return the number of terminals, including the file that opens them."""
    try:
        return sum(1 for _ in Path(folder).iterdir())
    except FileNotFoundError:
        return 0


async def end_with_too_many_terminals() -> None:
    """End the sandbox with all its processes once it has too many terminals."""
    while True:
        await asyncio.sleep(TERMINALS_INTERVAL_S)
        if count_terminals() > MAX_TERMINALS + 1:
            os._exit(EXCEEDED)
