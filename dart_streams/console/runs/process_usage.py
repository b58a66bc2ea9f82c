"""What the processes of a run cost: samples in a file of the run's folder."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from operator import attrgetter
from pathlib import Path

import msgspec

from dart_streams.console.runs.metrics_reader import read_lines

USAGE_FILE = "processes.jsonl"


class ProcessUsage(msgspec.Struct, frozen=True):
    """What a process tree had cost at one moment: CPU seconds since its start, and memory.

    ``own_s`` of the seconds are the worker process's without what it has started (a browser), and ``loop_s`` its main
    thread's, where its event loop runs, without those of libraries (an engine). ``stolen_s``, of the supervisor's
    samples, are those that the machine's host gave to others.
    """

    at_ms: int
    process: str
    cpu_s: float
    rss_mb: float
    own_s: float = 0.0
    loop_s: float = 0.0
    stolen_s: float = 0.0
    pid: int = 0
    """Of the root of the tree: another one each time that the process is started."""


def read_usage(path: Path) -> list[ProcessUsage]:
    """Read the samples of what the processes cost."""
    return [msgspec.convert(line, ProcessUsage) for line in read_lines(path)] if path.exists() else []


def cpu_seconds(
    usage: Iterable[ProcessUsage], start_ms: int, end_ms: int, of: Callable[[ProcessUsage], float] = attrgetter("cpu_s")
) -> dict[str, float]:
    """Return CPU seconds by process between two times: all of its tree's, or what ``of`` reads of a sample.

    Of a process that was started again it is the sum of its lives. In each the most that was seen counts: a sample that
    was taken while a part of the tree ended, or all of it, has less than was spent.
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
