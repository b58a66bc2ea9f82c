"""What the browser's processes do while a frame is late: compute, wait for a processor, or nothing."""

from pathlib import Path
from typing import NamedTuple

import psutil

CAN_RUN = (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)
COMPUTED_S = 1.0
"""CPU time in which a frame is drawn many times over."""
IDLE_S = 0.05
"""CPU time per poll below which a browser process counts as idle."""


class ProcessLoad(NamedTuple):
    """CPU time of a process tree since its start (seconds), and whether one of its processes can run."""

    cpu_s: float
    runnable: bool


def load_of(pid: int) -> ProcessLoad:
    """Return the load of a process and all below it; those that are gone count as nothing."""
    cpu_s, runnable = 0.0, False
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return ProcessLoad(0.0, False)
    for process in processes:
        try:
            times = process.cpu_times()
            cpu_s += times.user + times.system
            runnable = runnable or process.status() in CAN_RUN
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return ProcessLoad(cpu_s, runnable)


def load_alone(pid: int) -> ProcessLoad:
    """Return the load of a process without those below it; on Linux it can run if one of its threads can."""
    try:
        process = psutil.Process(pid)
        times, status = process.cpu_times(), process.status()
    except psutil.NoSuchProcess:
        return ProcessLoad(0.0, False)
    return ProcessLoad(times.user + times.system, status in CAN_RUN or any(map(can_run, threads_of(pid))))


def threads_of(pid: int) -> list[Path]:
    """Return where the kernel lists a process's threads; empty where there is no such place."""
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def can_run(thread: Path) -> bool:
    """Return whether a thread runs, waits for a processor, or for a disk."""
    try:
        return (thread / "stat").read_text().rpartition(") ")[2][:1] in ("R", "D")
    except OSError:
        return False


def rests(before: ProcessLoad, now: ProcessLoad) -> bool:
    """Return whether what was looked at twice waited for nothing but events meanwhile."""
    return now.cpu_s - before.cpu_s < IDLE_S and not (before.runnable or now.runnable)


def hangs(first: ProcessLoad, before: ProcessLoad, now: ProcessLoad) -> bool:
    """Return whether a late frame is lost, by the loads when it became late, when last looked at, and now.

    Either its page computes for ever, or all processes wait for something that does not come. A browser that other
    work keeps from the processors does neither.
    """
    computes = now.cpu_s - first.cpu_s >= COMPUTED_S
    return computes or rests(before, now)
