"""Reads the CPU time and memory of a run's processes, which its folder has as samples."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from operator import attrgetter
from pathlib import Path

import msgspec

from dart_streams.console.runs.metrics_reader import read_lines

USAGE_FILE = "processes.jsonl"


class ProcessUsage(msgspec.Struct, frozen=True):
    """CPU seconds of a process tree since its start, and its memory.

    ``own_s`` leaves out child processes (a browser), and ``loop_s`` is the main thread's, without those of libraries
    (an engine). ``stolen_s``, in the supervisor's samples, is time that the host gave to other machines. ``pid`` is the
    tree's root, and changes with a restart.
    """

    at_ms: int
    process: str
    cpu_s: float
    rss_mb: float
    own_s: float = 0.0
    loop_s: float = 0.0
    stolen_s: float = 0.0
    pid: int = 0


def read_usage(path: Path) -> list[ProcessUsage]:
    """Read the samples of all processes."""
    return [msgspec.convert(line, ProcessUsage) for line in read_lines(path)] if path.exists() else []


def cpu_seconds(
    usage: Iterable[ProcessUsage], start_ms: int, end_ms: int, of: Callable[[ProcessUsage], float] = attrgetter("cpu_s")
) -> dict[str, float]:
    """Return CPU seconds (or the seconds that ``of`` reads) by process between two times, summed over restarts.

    Of each life the largest sample counts, because samples shrink while the tree ends.
    """
    lives: dict[tuple[str, int], tuple[float, float]] = {}
    for sample in usage:
        if start_ms <= sample.at_ms <= end_ms:
            cpu_s = of(sample)
            first, most = lives.get((sample.process, sample.pid), (cpu_s, cpu_s))
            lives[sample.process, sample.pid] = (first, max(most, cpu_s))
    seconds: defaultdict[str, float] = defaultdict(float)
    for (process, _), (first, most) in lives.items():
        seconds[process] += most - first
    return {process: round(spent_s, 1) for process, spent_s in seconds.items()}
