"""Runs one command and leaves nothing of it behind, even if its parent is killed: ``subreaper.py GRACE_S COMMAND…``.

Stdin is a pipe that the supervisor holds open: its end means that the supervisor is gone. As the subreaper of all
that the command starts (a browser, an engine, torchrun), it finds whatever outlives the command and kills that.
Exits with the command's code, or 128 + signal. Standard library only, and started by path: it costs 8 MB a process.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
REAP_S = 3.0
CAUGHT = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


def main(arguments: list[str]) -> int:
    """Run the command to its end, passing SIGTERM and SIGINT on; after the grace time, or a second signal, kill it."""
    return run_command(arguments[1:], float(arguments[0]), catch_signals())[0]


def catch_signals() -> int:
    """Become the reaper of all descendants; return a pipe that has a byte for each signal."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    for number in CAUGHT:
        signal.signal(number, lambda *_: None)
    return wake


def run_command(command: list[str], grace_s: float, wake: int) -> tuple[int, bool]:
    """Run a command and end what it leaves; return its exit code, and whether a signal stopped it."""
    child = start(command, ctypes.CDLL(None, use_errno=True))
    result = follow(child, wake, grace_s)
    kill_descendants(time.monotonic() + REAP_S)
    return result


def start(command: list[str], libc: ctypes.CDLL) -> int:
    """Fork and execute ``command`` with an empty stdin; it dies with the subreaper."""
    subreaper = os.getpid()
    # The child has the pipe of signals until it has reset its handlers: one passed on by then would count as a second.
    signal.pthread_sigmask(signal.SIG_BLOCK, CAUGHT)
    if child := os.fork():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, CAUGHT)
        return child
    for number in CAUGHT:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, CAUGHT)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != subreaper:
        os._exit(128 + signal.SIGKILL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot start {command[0]}: {error.strerror}\n".encode())
        os._exit(127)


def follow(child: int, wake: int, grace_s: float) -> tuple[int, bool]:
    """Return the exit code of ``child``, and whether a signal stopped it; reap orphans meanwhile."""
    deadline: float | None = None
    watched = [0, wake]
    while True:
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = select.select(watched, [], [], timeout)[0]
        stops = 0
        if 0 in ready and not os.read(0, 1024):
            watched.remove(0)
            stops += 1
        if wake in ready:
            stops += sum(number != signal.SIGCHLD for number in os.read(wake, 1024))
        for pid, status in reap_children():
            if pid == child:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code, deadline is not None
        if stops and deadline is None:
            os.kill(child, signal.SIGTERM)
            deadline = time.monotonic() + grace_s
            stops -= 1
        if stops or (deadline is not None and time.monotonic() >= deadline):
            os.kill(child, signal.SIGKILL)
            deadline = time.monotonic() + REAP_S


def reap_children() -> list[tuple[int, int]]:
    """Return (pid, wait status) of every ended child."""
    ended = []
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended.append(found)
    return ended


def kill_descendants(deadline: float) -> None:
    """Kill all remaining descendants until none is left or time is up."""
    while time.monotonic() < deadline:
        left = find_descendants(os.getpid())
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        reap_children()
        if not left:
            return
        time.sleep(0.02)


def find_descendants(root: int) -> list[int]:
    """Return the descendants of ``root`` that are no zombies, from one scan of /proc."""
    children: dict[int, list[int]] = {}
    zombies = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            state, parent = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[:2]
            children.setdefault(int(parent), []).append(int(entry.name))
            if state == "Z":
                zombies.add(int(entry.name))
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return [pid for pid in found if pid not in zombies]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
