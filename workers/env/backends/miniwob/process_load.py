"""Load of the browser's processes while a frame is late: they compute, wait for a processor, or are idle."""

import contextlib
from pathlib import Path
from typing import NamedTuple

import psutil

CAN_RUN = (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)
COMPUTED_S = 1.0
"""CPU time that suffices for many frames."""
IDLE_S = 0.05
"""CPU time per poll below which a browser process counts as idle."""


class ProcessLoad(NamedTuple):
    """CPU time of a process tree since its start (seconds), and whether one of its processes can run."""

    cpu_s: float
    runnable: bool


def load_of(pid: int) -> ProcessLoad:
    """Return the load of a process and its descendants; processes that are gone count as 0."""
    cpu_s, runnable = 0.0, False
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return ProcessLoad(0.0, False)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            times = process.cpu_times()
            cpu_s += times.user + times.system
            runnable = runnable or process.status() in CAN_RUN
    return ProcessLoad(cpu_s, runnable)


def load_alone(pid: int) -> ProcessLoad:
    """Return the load of a process without its descendants; on Linux it can run if one of its threads can."""
    try:
        process = psutil.Process(pid)
        times, status = process.cpu_times(), process.status()
    except psutil.NoSuchProcess:
        return ProcessLoad(0.0, False)
    runnable = any(map(can_run, Path(f"/proc/{pid}/task").glob("*/stat")))
    return ProcessLoad(times.user + times.system, status in CAN_RUN or runnable)


def can_run(stat: Path) -> bool:
    """Return whether a thread runs, or waits for a processor or a disk, by its file; False if it has ended."""
    with contextlib.suppress(OSError):
        return stat.read_text(encoding="utf-8", errors="replace").rpartition(") ")[2][0] in "RD"
    return False


def rests(before: ProcessLoad, now: ProcessLoad) -> bool:
    """Return whether processes were idle between two polls."""
    return now.cpu_s - before.cpu_s < IDLE_S and not (before.runnable or now.runnable)


def hangs(first: ProcessLoad, before: ProcessLoad, now: ProcessLoad) -> bool:
    """Return whether a late frame is lost, by the loads when it became late, at the last poll, and now.

    Either its page computes forever, or all processes are idle. A browser that gets no processor does neither.
    """
    computes = now.cpu_s - first.cpu_s >= COMPUTED_S
    return computes or rests(before, now)
