"""What the processes of a run cost: samples in a file of the run's folder."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from operator import attrgetter
from pathlib import Path

import msgspec

from dart_streams.history.metrics_reader import lines

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


def usages(path: Path) -> list[ProcessUsage]:
    """Read the samples of what the processes cost."""
    return [msgspec.convert(line, ProcessUsage) for line in lines(path)] if path.exists() else []


def spent(
    usage: Iterable[ProcessUsage], start_ms: int, end_ms: int, of: Callable[[ProcessUsage], float] = attrgetter("cpu_s")
) -> dict[str, float]:
    """Return CPU seconds by process between two times: all of its tree's, or what ``of`` reads of a sample.

    It is what the samples grow by: where a part of the tree has ended, or the process has been started again, a sample
    has less than the one before.
    """
    newest: dict[str, float] = {}
    grown: defaultdict[str, float] = defaultdict(float)
    for sample in usage:
        if start_ms <= sample.at_ms <= end_ms:
            cpu_s = of(sample)
            grown[sample.process] += max(0.0, cpu_s - newest.get(sample.process, cpu_s))
            newest[sample.process] = cpu_s
    return {name: round(seconds, 1) for name, seconds in grown.items()}
