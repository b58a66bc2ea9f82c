"""What desktops leave behind: ``dart-streams bench desktops --soak N`` counts before and after each N resets.

Counted with every desktop at rest in the same task: what this process and its children have on the host, and what is
inside each sandbox, where the host may look (as root).
"""

import asyncio
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

from dart_streams.config import Config
from dart_streams.config.tasks import Task
from dart_streams.deadline import Deadline
from dart_streams.socket_folder import socket_folder
from workers.env.backends.desktop import limits
from workers.env.backends.desktop.backend import DesktopBackend
from workers.env.backends.desktop.command_line import WRITABLE
from workers.env.backends.desktop.environment import DesktopEnvironment
from workers.env.environment import EnvironmentFault


class Counts(msgspec.Struct, frozen=True):
    """What there is at one time. The last six are of all sandboxes together."""

    children: int
    zombies: int
    descriptors: int
    worker_mb: int
    folders: int
    groups: int
    processes_inside: int
    x_sockets: int
    files: int
    tmpfs_mb: float
    server_mb: int
    """Memory that only the servers inside have: see :func:`own_mb`."""
    shared_mb: int
    """Pages of files that they have mapped: programs, libraries, and the framebuffer that the X server has too."""


def count(environments: Sequence[DesktopEnvironment]) -> Counts:
    """Count what there is now."""
    own = psutil.Process()
    children = own.children(recursive=True)
    servers = [server for one in environments if (server := server_of(one)) is not None]
    roots = [Path(f"/proc/{server.pid}/root") for server in servers]
    return Counts(
        children=len(children),
        zombies=sum(one.status() == psutil.STATUS_ZOMBIE for one in children),
        descriptors=own.num_fds(),
        worker_mb=round(own.memory_info().rss / 1e6),
        folders=len(list(Path(tempfile.gettempdir()).glob(f"{limits.PREFIX}*"))),
        groups=len([*limits.ROOT.glob(f"*/{limits.PREFIX}{os.getpid()}-*")]),
        processes_inside=sum(len(server.children(recursive=True)) for server in servers),
        x_sockets=sum(len(entries(root / "tmp/.X11-unix")) for root in roots),
        files=sum(len(found) for root in roots for folder in WRITABLE for _, _, found in os.walk(f"{root}{folder}")),
        tmpfs_mb=round(sum(used_mb(root, folder) for root in roots for folder in WRITABLE), 1),
        server_mb=round(sum(own_mb(server) for server in servers)),
        shared_mb=round(sum(server.memory_info().shared for server in servers) / 1e6),
    )


def server_of(environment: DesktopEnvironment) -> psutil.Process | None:
    """Return the first process inside a sandbox, None if there is none."""
    if environment.sandbox.process is None:
        return None
    return next(iter(psutil.Process(environment.sandbox.process.pid).children()), None)


def own_mb(server: psutil.Process) -> float:
    """Return the resident memory of a process that is no file's: anybody may read it, unlike its mappings."""
    used = server.memory_info()
    return float(used.rss - used.shared) / 1e6


def entries(folder: Path) -> list[str]:
    """Return what is in a folder, nothing if this process may not look."""
    with contextlib.suppress(OSError):
        return [entry.name for entry in folder.iterdir()]
    return []


def used_mb(root: Path, folder: str) -> float:
    """Return what a sandbox's folder holds, 0 if this process may not look."""
    with contextlib.suppress(OSError):
        found = os.statvfs(f"{root}{folder}")
        return (found.f_blocks - found.f_bfree) * found.f_frsize / 1e6
    return 0.0


async def soak(
    config: Config,
    families: Sequence[Sequence[Task]],
    slots: int,
    resets: int,
    minutes: float = 0.0,
    note: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Reset ``slots`` desktops in rounds of ``resets`` in all, until ``minutes`` have passed, at least once.

    Return the counts before, after each round, and once all have ended; and of each round the resets, their seconds,
    and the faults, which a busy machine may bring.
    """
    env = msgspec.structs.replace(config.env, slots=slots)
    backend = DesktopBackend(msgspec.structs.replace(config, env=env))
    seconds: list[float] = []
    faults: list[str] = []
    rounds: list[dict[str, Any]] = []

    async def reset(task: Task) -> DesktopEnvironment:
        """Return a desktop that is reset to a task; a fault is counted, and another desktop taken."""
        while True:
            environment = await backend.open(task)
            begin = time.monotonic()
            try:
                await environment.reset(task)
            except EnvironmentFault as fault:
                faults.append(str(fault))
                await environment.close()
                continue
            seconds.append(time.monotonic() - begin)
            return environment

    async def episodes(slot: int, numbers: range) -> None:
        for number in numbers:
            family = families[(slot + number) % len(families)]
            environment = await reset(family[number % len(family)])
            await environment.close()

    async def all_at_rest() -> dict[str, Any]:
        environments = await asyncio.gather(*(reset(families[0][0]) for _ in range(slots)))
        counts = count(environments)
        await asyncio.gather(*(environment.close() for environment in environments))
        return msgspec.structs.asdict(counts)

    each, deadline = resets // slots, Deadline(60 * minutes)
    with folder_of_its_own():
        await backend.start()
        try:
            before = await all_at_rest()
            while not rounds or not deadline.expired:
                numbers = range(len(rounds) * each, (len(rounds) + 1) * each)
                await asyncio.gather(*(episodes(slot, numbers) for slot in range(slots)))
                counts = await all_at_rest()
                p50_s, max_s = round(statistics.median(seconds), 2), round(max(seconds), 2)
                rounds.append({"resets": len(seconds), "p50_s": p50_s, "max_s": max_s, "faults": [*faults], **counts})
                seconds.clear()
                faults.clear()
                note(f"{sum(one['resets'] for one in rounds)} resets")
        finally:
            await backend.stop()
        stopped = msgspec.structs.asdict(count([]))
    return {"slots": slots, "before": before, "after": rounds, "stopped": stopped}


@contextlib.contextmanager
def folder_of_its_own() -> Iterator[None]:
    """Let temporary folders be made in one of this process's, so that no other worker's are counted."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="soak-", dir=socket_folder()) as folder:
        # Sandboxes run as another user, who must get into it.
        Path(folder).chmod(0o711)
        tempfile.tempdir = folder
        try:
            yield
        finally:
            tempfile.tempdir = before
