"""``dart-streams`` and modules of Python as processes that begin with the imports of all workers, which take a second.

:class:`Forked` is a ``subprocess.Popen``: a child of the process that makes it, with its own signals, output, folder
and environment. It is forked from a server that has imported, and has no thread; all else of a program begins then.
"""

import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.sources import ROOT

PROGRAM = Path(sys.executable).parent / "dart-streams"
PRELOADED = (
    "console.cli.process",
    "console.monitor.main",
    "workers.curator.main",
    "workers.env.main",
    "workers.recorder.main",
    "workers.rollout.main",
    "workers.rollout.scripted",
)
PR_SET_CHILD_SUBREAPER = 36
LOCK = threading.Lock()
"""One process is begun at a time: a reply has no name, and this process takes the orphans meanwhile."""


class Forked(subprocess.Popen):  # type: ignore[type-arg]
    """``PROGRAM …`` or ``python -m MODULE …`` as a process; what a fork can't give it is refused."""

    def _execute_child(
        self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any, cwd: Any, env: Any, *rest: Any
    ) -> None:
        pipes, (restore_signals, *owners, umask, new_session, group) = rest[3:9], rest[9:]
        refused = executable, preexec_fn, *pass_fds, *filter(None, owners), not close_fds, not restore_signals
        assert not any(refused) and umask == group == -1, "start it by subprocess.Popen"
        request = {
            "command": [os.fspath(word) for word in args],
            "folder": os.fspath(cwd or Path.cwd()),
            "environment": dict(os.environ if env is None else env),
            "session": new_session,
        }
        ends = [number if end == -1 else end for number, end in enumerate((pipes[0], pipes[3], pipes[5]))]
        try:
            self.pid = begin(request, ends)
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        self._child_created = True


def run(command: list[Any], *, timeout: float, **options: Any) -> "subprocess.CompletedProcess[Any]":
    """Run a program to its end, as ``subprocess.run`` does with ``capture_output``."""
    with Forked(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as process:
        try:
            said = process.communicate(timeout=timeout)
        finally:
            process.kill()
    return subprocess.CompletedProcess(command, process.returncode, *said)


def begin(request: dict[str, Any], ends: list[int]) -> int:
    """Have the server fork a process, which becomes a child of this one; return its id."""
    with LOCK:
        _, link = server()
        adopt_orphans(True)
        try:
            socket.send_fds(link, [b"."], ends)
            link.sendall(json.dumps(request).encode() + b"\n")
            return int(link.recv(64))
        finally:
            adopt_orphans(False)


def adopt_orphans(whether: bool) -> None:
    """Become the parent of descendants whose parent ends, or no longer."""
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(whether), 0, 0, 0) == 0


@functools.cache
def server() -> "tuple[subprocess.Popen[bytes], socket.socket]":
    """Start the server, once a process; it ends with this one, whose end of the link is the last."""
    ours, its = socket.socketpair()
    # A thread outlives no fork, and numpy's library of linear algebra would start one.
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.fork_server", str(its.fileno())]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, env=environment, pass_fds=[its.fileno()])
    its.close()
    return process, ours


def serve(link: socket.socket) -> dict[str, Any]:
    """Fork for each request until the client has ended; return the request in the process that is to fulfil it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all of the group
    for name in PRELOADED:
        importlib.import_module(name)
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a thread would be lost in each process"
    gc.freeze()
    while ends := socket.recv_fds(link, 1, 3)[1]:
        with link.makefile("rb") as lines:
            request: dict[str, Any] = json.loads(lines.readline())
        if not (child := fork_orphan()):
            for number, end in enumerate(ends):
                os.dup2(end, number)
                os.close(end)
            return request
        for end in ends:
            os.close(end)
        link.sendall(str(child).encode())
    os._exit(0)


def fork_orphan() -> int:
    """Fork a process that has begun once its first parent has ended; return its id, in itself 0."""
    named, names = os.pipe()
    begins, ended = os.pipe()
    if between := os.fork():
        os.waitpid(between, 0)
        child = int(os.read(named, 64))
    elif child := os.fork():
        os.write(names, str(child).encode())
        os._exit(0)
    else:
        os.close(ended)
        os.read(begins, 1)  # until no other has its end
        ended = begins
    for number in {named, names, begins, ended}:
        os.close(number)
    return child


def fulfil(request: dict[str, Any]) -> None:
    """Be the program of a request, as a new interpreter would."""
    if request["session"]:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.chdir(request["folder"])
    program, *words = request["command"]
    if program == sys.executable:
        option, module, *words = words
        assert option == "-m", "start it by subprocess.Popen"
        sys.argv, sys.path[0] = [program, *words], request["folder"]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = [program, *words], str(Path(program).parent)
        runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as to_client:
        wanted = serve(to_client)
    fulfil(wanted)
