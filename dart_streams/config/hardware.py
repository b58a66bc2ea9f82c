"""The table ``[hardware]``: one dial in place of the sizes that follow from a machine, and its GPUs.

The sizes per core are those of the demonstrations, which were measured on 2 cores and 24 GiB without a GPU.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec

from dart_streams.config.section import Count, Optional

SLOTS_PER_CORE = {"miniwob": 12, "desktop": 6, "phone": 4}
"""Slots of an environment worker, by backend; others have the default of ``env.slots``."""
SLOTS_PER_GIB = 2
"""Bound of the slots by memory: a slot keeps a browser context with its documents, a desktop, or a phone."""
MAX_BROWSERS = 8
GATHER_MS = 200.0
"""``rollout.vllm.gather_ms`` without a GPU, where a batch of many requests costs as much as one of a few."""
NO_GATHER_MS = 0.0
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
CONTROL_GROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Files of a container's memory limit: of control groups version 2 and version 1."""
GPU_DEVICE = Path("/dev/nvidia0")


class Hardware(Optional, frozen=True):
    """The machine that a deployment is sized for: slots, browsers, how requests are batched, and GPUs."""

    cores: Count | Literal["auto"] = 0
    """Cores to size for; ``auto``: those of this machine; 0: sizes are those of their own keys. Sets ``env.slots``,
    ``env.miniwob.browsers`` and ``rollout.vllm.gather_ms`` where the file does not."""
    gpus: Count | Literal["auto"] = "auto"
    """GPUs of a machine that ``dart-streams run`` gives to processes; ``auto``: those of this machine that
    ``CUDA_VISIBLE_DEVICES`` leaves; 0: none, each process sees all."""
    rollout_gpus: Count = 0
    """GPUs of a machine for rollout workers; 0: by the model's memory where its headers are known, else half. Sets
    ``rollout.workers`` where the file does not. An endpoint's are left free."""
    trainer_gpus: Count = 0
    """GPUs of a machine for the trainer, one a rank; 0: as for rollout. Sets ``trainer.processes`` where the file does
    not."""


class MachineSize(msgspec.Struct, frozen=True):
    """What a machine, or the container on it, has."""

    cores: int
    memory_gib: float
    gpu: bool


def read_machine() -> MachineSize:
    """Return the machine's cores and memory within the bounds of its container, and whether it has a GPU."""
    return MachineSize(available_cores(), memory_limit(CONTROL_GROUPS) / 2**30, GPU_DEVICE.exists())


def available_cores() -> int:
    """Return the cores that this process may use: those of its affinity, or its container's quota if that is less.

    Numbers of threads and processes follow from it; ``os.cpu_count`` has all cores of the host.
    """
    cores = float(len(os.sched_getaffinity(0)))
    quota, _, period = read_limit(CPU_QUOTA).partition(" ")
    if quota.isdigit() and period.isdigit():
        cores = min(cores, int(quota) / int(period))
    return max(1, int(cores))


def memory_limit(files: Iterable[Path] = CONTROL_GROUPS) -> int:
    """Return the memory of the machine in bytes, or the container's limit if that is less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    return min(limits + [int(text) for file in files if (text := read_limit(file)).isdecimal()])


def read_limit(file: Path) -> str:
    """Return the text of a control group's limit, empty if there is none."""
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def size_tables(tables: dict[str, Any], machine: MachineSize) -> dict[str, Any]:
    """Return a file's tables with the sizes that ``hardware.cores`` sets, where they have none.

    The result has the dial at 0: read on another machine, it means the same.
    """
    hardware, env, rollout = (tables.get(name, {}) for name in ("hardware", "env", "rollout"))
    if not all(isinstance(table, dict) for table in (hardware, env, rollout)):
        return tables  # What is wrong with them is said by the reader of all tables.
    cores = machine.cores if hardware.get("cores") == "auto" else hardware.get("cores")
    if not isinstance(cores, int) or cores < 1:
        return tables
    backend, sizes = env.get("backend", "miniwob"), {"hardware": {**hardware, "cores": 0}}
    if isinstance(backend, str) and backend in SLOTS_PER_CORE:
        slots = min(SLOTS_PER_CORE[backend] * cores, int(SLOTS_PER_GIB * machine.memory_gib))
        sizes["env"] = {"slots": max(1, slots), **env}
    if backend == "miniwob":
        sizes["env"] |= set_default(env, "miniwob", "browsers", min(cores, MAX_BROWSERS))
    if rollout.get("engine", "vllm") == "vllm":
        gather_ms = NO_GATHER_MS if machine.gpu else GATHER_MS
        sizes["rollout"] = {**rollout, **set_default(rollout, "vllm", "gather_ms", gather_ms)}
    return {**tables, **sizes}


def set_default(tables: dict[str, Any], name: str, key: str, value: float) -> dict[str, Any]:
    """Return the table ``name`` with a value for a key that it does not have; a table that is none stays as it is."""
    table = tables.get(name, {})
    return {name: {key: value, **table} if isinstance(table, dict) else table}
