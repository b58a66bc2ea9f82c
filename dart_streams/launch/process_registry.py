"""Which processes a run has, on disk: what a killed supervisor left is found again and ended, if it is ours."""

import contextlib
import os
from pathlib import Path
from typing import Self

import msgspec
import psutil

SAME_START_S = 2.0
END_S = 5.0


class ProcessIdentity(msgspec.Struct, frozen=True):
    """A process, known by more than its number: numbers are used again."""

    name: str
    pid: int
    started_s: float
    command: tuple[str, ...]

    @classmethod
    def of(cls, name: str, pid: int) -> Self:
        """Mark a running process; raises psutil.NoSuchProcess if there is none."""
        process = psutil.Process(pid)
        return cls(name, pid, process.create_time(), tuple(process.cmdline()))

    def process(self) -> psutil.Process | None:
        """Return the very process that was marked, None if it is gone or its number has another owner."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started_s) < SAME_START_S
            if same and tuple(process.cmdline()) == self.command and process.status() != psutil.STATUS_ZOMBIE:
                return process
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            pass
        return None


class ProcessRegistry(msgspec.Struct, frozen=True):
    """The processes of a run. ``services`` says whether its supervisor started the local services."""

    supervisor: ProcessIdentity
    children: tuple[ProcessIdentity, ...] = ()
    services: bool = False


def write(path: Path, roster: ProcessRegistry) -> None:
    """Replace the file in one step."""
    fresh = path.with_suffix(".new")
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(roster)))
    fresh.replace(path)


def read(path: Path) -> ProcessRegistry | None:
    """Return what the file says, None if it is missing or torn."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ProcessRegistry)
    except (OSError, msgspec.DecodeError):
        return None


def end_leftovers(runs: Path) -> tuple[list[str], bool]:
    """End the processes of runs whose supervisor is gone.

    Returns
    -------
    The names of what was ended, as ``run/process``, and whether such a run had started the local services.
    """
    ended: list[str] = []
    services = False
    for path in sorted(runs.glob("*/processes.json")):
        roster = read(path)
        if roster is None or roster.supervisor.process() is not None:
            continue
        services = services or roster.services
        left = [(mark, process) for mark in roster.children if (process := mark.process())]
        ended += [f"{path.parent.name}/{mark.name}" for mark, _ in left]
        end([process for _, process in left])
        path.unlink(missing_ok=True)
    return ended, services


def end(processes: list[psutil.Process]) -> None:
    """Ask processes to end, and kill them and all below them if they do not in time."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    for process in psutil.wait_procs(processes, timeout=END_S)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            for below in (*process.children(recursive=True), process):
                with contextlib.suppress(psutil.NoSuchProcess):
                    below.kill()


def this_process() -> ProcessIdentity:
    """Return the mark of the calling process."""
    return ProcessIdentity.of("supervisor", os.getpid())
