"""Processes of the model side that begin with torch, transformers and vLLM imported, which takes longer than a test."""

import contextlib
import ctypes
import multiprocessing
import os
import runpy
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import NoReturn

from torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler

from console.cli import main as command_line
from console.launch import subreaper
from console.launch.services.daemon import free_port
from dart_streams import crash_points

spawning = multiprocessing.get_context("forkserver")
spawning.set_forkserver_preload(["tests.model.preloaded"])
POLLING = threading.Lock()
"""A start polls all children: an exit status that two threads read at once is lost to one of them, which gets 255."""


def fork_own_ranks() -> None:
    """Let torchrun's agent in this process, which has no thread yet, fork its ranks rather than start interpreters.

    They are forked from the process as it is now, and adopted by it: for agent and kernel they are its children.
    """
    ctypes.CDLL(None).prctl(subreaper.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    ours, theirs = multiprocessing.Pipe()
    launcher = os.getpid()
    if os.fork() == 0:
        ours.close()
        fork_as_asked(theirs, launcher)
    theirs.close()

    def start(_handler: object, words: Sequence[str], environment: Mapping[str, str]) -> AdoptedRank:
        ours.send((words, environment))
        return AdoptedRank(ours.recv())

    SubprocessHandler._popen = start


def fork_as_asked(asked: Connection, launcher: int) -> NoReturn:
    """Fork a rank for each command, by a process that ends at once: the launcher adopts what that one leaves."""
    with contextlib.suppress(EOFError):
        while True:
            words, environment = asked.recv()
            if os.fork():
                os.wait()
            elif os.fork():
                os._exit(0)
            else:
                while os.getppid() != launcher:
                    time.sleep(0.001)
                asked.send(os.getpid())
                be_module(words, environment)
    os._exit(0)


def be_module(words: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Be ``python -m MODULE …`` with an environment, in a session of its own."""
    os.setsid()
    os.environ.update(environment)
    sys.argv = list(words[2:])
    try:
        runpy.run_module(words[2], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        sys.stdout.flush()
        os._exit(int(end.code or 0))
    finally:
        traceback.print_exc()
        os._exit(1)


class AdoptedRank(subprocess.Popen[bytes]):
    """A child that another process has forked, with what a start of ``subprocess.Popen`` would set."""

    def __init__(self, pid: int) -> None:
        self.pid, self.returncode, self.args = pid, None, ()
        self.stdin = self.stdout = self.stderr = None
        self._child_created, self._waitpid_lock = True, threading.Lock()


def be_command(*words: object, crash_point: str = "") -> None:
    """Be ``dart-streams`` with these words, killed or stopped at a point; ranks that it starts are forked."""
    fork_own_ranks()
    os.environ[crash_points.ENVIRONMENT] = crash_point
    sys.argv = ["dart-streams", *map(str, words)]
    command_line.main()


def jobs(count: int, nodes: int = 1) -> list[dict[str, str]]:
    """Return what torchrun would put into the environment of each rank of a job on this host, as on ``nodes``."""
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(count)}
    job["LOCAL_WORLD_SIZE"] = str(count // nodes)
    return [job | {"RANK": str(rank), "LOCAL_RANK": str(rank % (count // nodes))} for rank in range(count)]


def run_ranks(count: int, main: Callable[..., None], *arguments: object, limit_s: float, nodes: int = 1) -> None:
    """Run ``main(job, *arguments)`` as each rank of a job of ``count``; none may fail or outlast ``limit_s``."""
    ranks = [spawning.Process(target=main, args=(job, *arguments)) for job in jobs(count, nodes)]
    for process in ranks:
        process.start()
    try:
        for process in ranks:
            process.join(limit_s)
        assert [process.exitcode for process in ranks] == [0] * count
    finally:
        for process in ranks:
            process.kill()
