"""Limits of memory, processes and processors of a sandbox, by control groups if this worker may create them.

Version 1 needs root; version 2 needs the right to create groups beside the worker's, with enabled controllers. Without
either, only the sizes of its folders are limited.
"""

import asyncio
import contextlib
import itertools
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from dart_streams.deadline import Deadline

ROOT = Path("/sys/fs/cgroup")
MEMORY_MB = 2048
PROCESSES = 512
PROCESSORS = 2
PERIOD_US = 100_000
NICE = 10
"""Priority as of the browsers: a slow desktop delays one episode only, unlike the policy, the broker or the trainer."""
SHARES, USUAL_SHARES = 110, 1024
"""Weights of that priority and of the usual one in the kernel (``sched_prio_to_weight``)."""
WEIGHTS = {"cpu.shares": (SHARES, 2**18), "cpu.weight": (11, 10_000)}
"""Files of the weight in versions 1 and 2, with that of the priority and the highest."""
REMOVE_S = 30.0
"""Time limit for the killed processes of a group to end: hundreds at a low priority, on a busy machine."""
POLL_INTERVAL_S = 0.02
PREFIX = "dart-desktop-"
CPU_TIMES: dict[str, Callable[[str], float]] = {
    "cpuacct.usage": lambda text: int(text) / 1e9,
    "cpu.stat": lambda text: int(text.split()[1]) / 1e6,
}
"""Files of CPU time with their parsers, first version 1: a file of version 2 has other contents there."""
COUNTS = {
    "pids.events": ("max", f"its {PROCESSES} processes"),
    "memory.oom_control": ("oom_kill", f"its {MEMORY_MB} MB of memory"),
    "memory.events": ("oom_kill", f"its {MEMORY_MB} MB of memory"),
}
"""Files that count how often a limit was reached, with key and limit: of both versions, 1 and 2."""
_number = itertools.count()


class ControlGroup(msgspec.Struct, frozen=True):
    """Folders of a control group, none if it could not be created."""

    folders: tuple[Path, ...] = ()

    def command(self) -> list[str]:
        """Return the prefix of a command that joins the group and then executes the rest."""
        if not self.folders:
            return []
        joined = " ".join(f"'{folder}/cgroup.procs'" for folder in self.folders)
        return ["/bin/sh", "-c", f'for group in {joined}; do echo $$ > "$group" || exit 3; done; exec "$@"', "sh"]

    @property
    def bounded(self) -> bool:
        """Whether it limits memory and processes."""
        return any((folder / "pids.max").exists() for folder in self.folders) and any(
            (folder / name).exists() for folder in self.folders for name in ("memory.max", "memory.limit_in_bytes")
        )

    def exceeded(self) -> str:
        """Return the limit that it has reached, at which processes are refused or killed; empty if none."""
        for name, (key, bound) in COUNTS.items():
            for folder in self.folders:
                with contextlib.suppress(OSError):
                    lines = (folder / name).read_text(encoding="utf-8").splitlines()
                    if any(line.startswith(f"{key} ") and line != f"{key} 0" for line in lines):
                        return bound
        return ""

    def cpu_s(self) -> float | None:
        """Return the CPU seconds of all processes so far, None without a group."""
        for name, read in CPU_TIMES.items():
            for folder in self.folders:
                with contextlib.suppress(FileNotFoundError):
                    return read((folder / name).read_text(encoding="utf-8"))
        return None

    def set_weight(self, factor: float) -> None:
        """Set the weight to ``factor`` times that of the priority."""
        for name, (weight, highest) in WEIGHTS.items():
            for folder in self.folders:
                if (folder / name).exists():
                    with contextlib.suppress(OSError):
                        (folder / name).write_text(str(min(round(factor * weight), highest)), encoding="utf-8")

    async def remove(self) -> None:
        """Remove the group once its processes have ended; never raises."""
        deadline = Deadline(REMOVE_S)
        for folder in self.folders:
            while not remove_folder(folder):
                if deadline.expired:
                    break
                await asyncio.sleep(POLL_INTERVAL_S)


def make_group(root: Path = ROOT, memory_mb: int = MEMORY_MB) -> ControlGroup:
    """Create a group with its limits in the hierarchies that allow it."""
    name = f"{PREFIX}{os.getpid()}-{next(_number)}"
    hierarchies = (version_2 if is_version_2(root) else version_1)(root, name, memory_mb)
    folders: list[Path] = []
    for folder, bounds in hierarchies.items():
        try:
            folder.mkdir()
            for file, value in bounds.items():
                (folder / file).write_text(value, encoding="utf-8")
            folders.append(folder)
        except OSError:
            with contextlib.suppress(OSError):
                folder.rmdir()
    return ControlGroup(tuple(folders))


def remove_folder(folder: Path) -> bool:
    """Remove a group's folder; return False if it still has a process."""
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def sweep(root: Path = ROOT, proc: Path = Path("/proc")) -> None:
    """Remove the groups of dead workers; a group of a live one may have no process yet."""
    beside = beside_own(root).glob(f"{PREFIX}*") if is_version_2(root) else ()
    for folder in {*root.glob(f"*/{PREFIX}*"), *root.glob(f"{PREFIX}*"), *beside}:
        worker = folder.name.removeprefix(PREFIX).partition("-")[0]
        if not (proc / worker).exists():
            remove_folder(folder)


def version_1(root: Path, name: str, memory_mb: int) -> dict[Path, dict[str, str]]:
    """Return the folders and limits of version 1."""
    quota = {
        "cpu.cfs_period_us": str(PERIOD_US),
        "cpu.cfs_quota_us": str(PROCESSORS * PERIOD_US),
        "cpu.shares": str(SHARES),
    }
    return {
        root / "memory" / name: {"memory.limit_in_bytes": str(memory_mb * 2**20)},
        root / "pids" / name: {"pids.max": str(PROCESSES)},
        root / "cpu" / name: quota,
        root / "cpuacct" / name: {},
    }


def version_2(root: Path, name: str, memory_mb: int) -> dict[Path, dict[str, str]]:
    """Return the folder and limits of version 2, beside this worker's group."""
    bounds = {
        "memory.max": str(memory_mb * 2**20),
        "pids.max": str(PROCESSES),
        "cpu.max": f"{PROCESSORS * PERIOD_US} {PERIOD_US}",
        "cpu.weight.nice": str(NICE),
    }
    return {beside_own(root) / name: bounds}


def is_version_2(root: Path) -> bool:
    """Return whether the system has version 2."""
    return (root / "cgroup.controllers").exists()


def beside_own(root: Path) -> Path:
    """Return the parent folder of this worker's group in version 2."""
    own = Path("/proc/self/cgroup").read_text(encoding="utf-8").strip().rpartition("::")[2].lstrip("/")
    return (root / own).parent
