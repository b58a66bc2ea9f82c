"""CPU and memory of a run's processes: sampled into a file of the run's folder, and read from it."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path

import msgspec
import psutil

from console.runs.metrics_reader import read_lines
from dart_streams.clock import now_ms
from dart_streams.telemetry.exporters import append

USAGE_FILE = "processes.jsonl"
SAMPLE_INTERVAL_S = 5.0


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
    return [*read_lines(path, ProcessUsage)] if path.exists() else []


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


async def sample_usage(folder: Path, roots: Callable[[], Mapping[str, int]]) -> None:
    """Append a line for each process every few seconds, forever; ``roots`` returns the pids by process name."""
    while True:
        children = children_by_pid()
        lines = [measure(name, pid, children) for name, pid in roots().items()]
        stolen_s = round(getattr(psutil.cpu_times(), "steal", 0.0), 2)
        # The supervisor without its children, which have their own lines.
        lines.append(measure("supervisor", psutil.Process().pid, {}) | {"stolen_s": stolen_s})
        await asyncio.to_thread(append, folder / "metrics" / USAGE_FILE, lines)
        await asyncio.sleep(SAMPLE_INTERVAL_S)


def children_by_pid() -> dict[int, list[int]]:
    """Return the child pids of every process of this machine."""
    children: dict[int, list[int]] = {}
    psutil.process_iter.cache_clear()  # It leaves out a process whose pid was another's at an earlier call.
    for process in psutil.process_iter(["ppid"]):
        children.setdefault(process.info["ppid"], []).append(process.pid)
    return children


def measure(name: str, root: int, children: Mapping[int, Sequence[int]]) -> dict[str, object]:
    """Return the :class:`ProcessUsage` of a process tree as a table.

    Ended processes count through the times of their waiting parents. The worker is the child of ``root``, its
    subreaper; a service and the supervisor have none.
    """
    cpu_s, memory = 0.0, 0
    for pid in process_tree(root, children):
        try:
            process = psutil.Process(pid)
            times = process.cpu_times()
            cpu_s += times.user + times.system
            if name != "supervisor":
                cpu_s += times.children_user + times.children_system
            memory += process.memory_info().rss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    found = {
        "at_ms": now_ms(),
        "process": name,
        "pid": root,
        "cpu_s": round(cpu_s, 2),
        "rss_mb": round(memory / 1e6, 1),
    }
    return found | own_usage(next(iter(children.get(root, ())), root))


def own_usage(pid: int) -> dict[str, float]:
    """Return the CPU seconds of a process and of its main thread: the part is read before the whole, which goes on."""
    try:
        process = psutil.Process(pid)
        loops = [thread.user_time + thread.system_time for thread in process.threads() if thread.id == pid]
        times = process.cpu_times()
        return {"own_s": round(times.user + times.system, 2), "loop_s": round(sum(loops), 2)}
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return {}


def process_tree(root: int, children: Mapping[int, Sequence[int]]) -> Iterator[int]:
    """Yield a process and all below it."""
    yield root
    for child in children.get(root, ()):
        yield from process_tree(child, children)
