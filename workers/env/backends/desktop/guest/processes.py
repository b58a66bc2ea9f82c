"""The processes of the sandbox, as its own /proc shows them."""

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

BUSY = frozenset("RD")
"""States of a thread that computes, waits for a processor, or waits for a disk."""
KILL_S = 5.0
POLL_INTERVAL_S = 0.002


def list_pids(proc: Path = Path("/proc")) -> list[int]:
    """Return all processes."""
    return [int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal()]


def thread_state(stat: str) -> str:
    """Return the state letter of a line of ``/proc/*/stat``; the command's name in it may contain anything."""
    return stat[stat.rindex(")") + 2]


class Activity:
    """Looks for threads that compute. The one found last is looked at first: in a long start one look is enough."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self.proc = str(proc)
        self.last = ""

    def busy(self, besides: Iterable[int]) -> bool:
        """Return whether a thread of any process, ``besides`` some, is computing or waits to."""
        left_out = {str(pid) for pid in besides}
        if self.last and self.last.split("/")[-4] not in left_out and computes(self.last):
            return True
        self.last = next(filter(computes, self._threads(left_out)), "")
        return bool(self.last)

    def _threads(self, left_out: set[str]) -> Iterator[str]:
        for pid in list_names(self.proc):
            if pid.isdecimal() and pid not in left_out:
                threads = f"{self.proc}/{pid}/task"
                # One that ended meanwhile has worked too, but those that wait for it do now.
                with contextlib.suppress(OSError):
                    yield from (f"{threads}/{thread}/stat" for thread in list_names(threads))


def computes(stat: str) -> bool:
    """Return whether a thread computes, waits for a processor or for a disk; not if it has ended."""
    try:
        return thread_state(read(stat)) in BUSY
    except OSError:
        return False


def list_names(folder: str) -> list[str]:
    """Return what is in a folder."""
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]


def read(path: str) -> str:
    """Return what a short file contains: without a buffer, for the threads of a desktop are looked at often."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 4096).decode(errors="replace")
    finally:
        os.close(descriptor)


def end_all(besides: Iterable[int]) -> None:
    """Kill every process ``besides`` some; raise TimeoutError if one does not go.

    Those that are made meanwhile are killed too, so a fork bomb ends: each is stopped before any is killed. This
    process is the sandbox's first, so whatever loses its parent becomes its child, and none stays as a zombie.
    """
    kept = set(besides)
    deadline = time.monotonic() + KILL_S
    while others := [pid for pid in list_pids() if pid not in kept]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(others)} processes do not end, {others[0]} among them")
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in others:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        collect()
        time.sleep(POLL_INTERVAL_S)


def collect() -> None:
    """Collect the ends of all children."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def collect_orphans(own: Iterable[int], proc: Path = Path("/proc")) -> None:
    """Collect the ends of children that this process did not start, those in ``own``: they lost their parents."""
    for pid in set(list_pids(proc)) - set(own):
        with contextlib.suppress(OSError):
            if thread_state((proc / str(pid) / "stat").read_text()) == "Z":
                os.waitpid(pid, os.WNOHANG)
