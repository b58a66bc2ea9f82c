"""What each process of a run costs: CPU and memory of its whole tree, sampled into the metrics folder."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from dart_streams.clock import now_ms
from dart_streams.console.launch.services.daemon import Home
from dart_streams.console.launch.services.jars import SERVICES
from dart_streams.console.launch.supervisor import Supervisor
from dart_streams.console.runs.process_usage import USAGE_FILE
from dart_streams.telemetry.exporters import append

EVERY_S = 5.0


async def sample(supervisor: Supervisor, services: Path) -> None:
    """Append a line per process every few seconds, for ever; ``services`` is the folder of the local services."""
    jvms = {service: found for service in SERVICES if (found := Home(services / service).find())}
    while True:
        trees = {name: child.process.pid for name, child in supervisor.children.items() if child.process}
        trees |= {service: process.pid for service, (process, _) in jvms.items()}
        children = children_by_pid()
        lines = [measure(name, pid, children) for name, pid in trees.items()]
        # Of the supervisor only itself, for the others are its children.
        stolen_s = round(getattr(psutil.cpu_times(), "steal", 0.0), 2)
        lines.append(measure("supervisor", psutil.Process().pid, {}) | {"stolen_s": stolen_s})
        await asyncio.to_thread(append, supervisor.folder / "metrics" / USAGE_FILE, lines)
        await asyncio.sleep(EVERY_S)


def children_by_pid() -> dict[int, list[int]]:
    """Return the children of every process of this machine: as cheap for all processes as for one."""
    children: dict[int, list[int]] = {}
    for process in psutil.process_iter(["ppid"]):
        children.setdefault(process.info["ppid"], []).append(process.pid)
    return children


def measure(name: str, root: int, children: Mapping[int, Sequence[int]]) -> dict[str, object]:
    """Add up a process tree (a :class:`dart_streams.console.runs.process_usage.ProcessUsage`).

    Processes of the tree that have ended count by the times that the system keeps for whoever waited for them. The
    worker is the child of ``root``, which is its subreaper; a service and the supervisor have none.
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
    """Return the CPU seconds of a process itself, and of its main thread."""
    try:
        process = psutil.Process(pid)
        times = process.cpu_times()
        loops = [thread.user_time + thread.system_time for thread in process.threads() if thread.id == pid]
        return {"own_s": round(times.user + times.system, 2), "loop_s": round(sum(loops), 2)}
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return {}


def process_tree(root: int, children: Mapping[int, Sequence[int]]) -> Iterator[int]:
    """Yield a process and all below it."""
    yield root
    for child in children.get(root, ()):
        yield from process_tree(child, children)
