"""What each process of a run costs: CPU and memory of its whole tree, sampled into the metrics folder."""

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from dart_streams.run.supervisor import Supervisor
from dart_streams.services.daemon import Home
from dart_streams.telemetry.lines import append

EVERY_S = 2.0
FILE = "processes.jsonl"


async def sample(supervisor: Supervisor, services: Path) -> None:
    """Append a line every few seconds, for ever: a process each, its CPU seconds so far and its memory."""
    jvms = {service: found for service in ("kafka", "cassandra") if (found := Home(services / service).find())}
    while True:
        trees = {name: child.process.pid for name, child in supervisor.children.items() if child.process}
        trees |= {service: process.pid for service, (process, _) in jvms.items()}
        trees["supervisor"] = psutil.Process().pid
        lines = [measure(name, pid) for name, pid in trees.items()]
        await asyncio.to_thread(append, supervisor.folder / "metrics" / FILE, lines)
        await asyncio.sleep(EVERY_S)


def measure(name: str, root: int) -> dict[str, object]:
    """Add up a process tree; what has ended in it counts by the times that whoever waited for it has kept.

    The worker is what the root, its leash, has started; a service has no leash.
    """
    cpu_s, memory = 0.0, 0
    for process in tree(root, below=name != "supervisor"):
        try:
            times = process.cpu_times()
            cpu_s += times.user + times.system
            if name != "supervisor":
                cpu_s += times.children_user + times.children_system
            memory += process.memory_info().rss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return {
        "at_ms": int(time.time() * 1000),
        "process": name,
        "cpu_s": round(cpu_s, 2),
        "rss_mb": round(memory / 1e6, 1),
        **own(root, below=name != "supervisor"),
    }


def own(root: int, *, below: bool) -> dict[str, float]:
    """Return the CPU seconds of the worker itself, and of its main thread."""
    try:
        process = psutil.Process(root)
        worker = next(iter(process.children()), process) if below else process
        times = worker.cpu_times()
        loops = [thread.user_time + thread.system_time for thread in worker.threads() if thread.id == worker.pid]
        return {"own_s": round(times.user + times.system, 2), "loop_s": round(sum(loops), 2)}
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return {}


def tree(root: int, *, below: bool) -> Iterable[psutil.Process]:
    """Return a process and all below it; of the supervisor only itself, for the others are its children."""
    try:
        process = psutil.Process(root)
        return [process, *(process.children(recursive=True) if below else [])]
    except psutil.NoSuchProcess:
        return []


def services_folder(supervisor: Supervisor) -> Path:
    """Return where the local services of this run's state folder live."""
    return supervisor.folder.parent.parent / "services"
