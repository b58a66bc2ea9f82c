"""Check that the local services fit into memory before they start: the kernel kills processes that do not fit."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from console.launch.services.jvm import Service
from dart_streams.errors import ServiceUnavailable

MIB = 2**20
CGROUPS = Path("/sys/fs/cgroup")
OWN_GROUP = Path("/proc/self/cgroup")
NO_MEMORY = ("Could not reserve enough space", "insufficient memory", "Cannot allocate memory")
"""Log messages of a JVM without memory."""
FULL_HEAP = "OutOfMemoryError"


def refuse_too_little(services: Sequence[Service]) -> None:
    """Raise :class:`ServiceUnavailable` if there is too little memory to start ``services``."""
    needed = sum(service.heap_mb + service.overhead_mb for service in services)
    free, bound = min([(psutil.virtual_memory().available // MIB, "this machine"), *limits_mb()])
    if services and needed > free:
        what = " and ".join(
            f"{each.title} {each.heap_mb + each.overhead_mb} (services.{each.name}_heap_mb = {each.heap_mb})"
            for each in services
        )
        raise ServiceUnavailable(
            f"too little memory: in MiB, {what} need {needed}, and {bound} has {free} free: end other programs, "
            "raise the limit, or lower the heaps"
        )


def limits_mb(groups: Path = CGROUPS, own: Path = OWN_GROUP) -> list[tuple[int, str]]:
    """Return the free MiB, cached files included, and the name of each limited control group of this process."""
    left = []
    for folder, (limit_file, used_file, *cached) in group_folders(groups, own):
        limit, used = read(folder / limit_file).strip(), read(folder / used_file).strip()
        # A group without a limit says `max`.
        if limit.isdecimal() and used.isdecimal():
            statistics = dict(line.partition(" ")[::2] for line in read(folder / "memory.stat").splitlines())
            free = int(limit) - int(used) + sum(int(statistics.get(key, "0")) for key in cached)
            left.append((max(0, free) // MIB, f"the control group {folder}"))
    return left


V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file")
V2 = ("memory.max", "memory.current", "inactive_file", "active_file")


def group_folders(groups: Path, own: Path) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Yield the folders of this process's control groups up to the root, with their file names."""
    for line in read(own).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            root, names = (groups / "memory", V1) if controllers else (groups, V2)
            place = root / path.lstrip("/")
            yield from ((folder, names) for folder in (place, *place.parents) if folder.is_relative_to(root))


def read(file: Path) -> str:
    """Return a file's text, empty if it can't be read."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""


def memory_advice(log_end: str, *, killed: bool, service: Service) -> str:
    """Return the advice for a service that died for lack of memory, else an empty text."""
    if FULL_HEAP in log_end:
        return f": its heap is too small: raise services.{service.name}_heap_mb (it is {service.heap_mb})"
    if not killed and not any(words in log_end for words in NO_MEMORY):
        return ""
    how = "it was killed, as the kernel does" if killed else "it got no memory"
    return (
        f", probably for lack of memory ({how}): it needs about {service.heap_mb + service.overhead_mb} MiB; end "
        f"other programs, raise the limit, or lower services.{service.name}_heap_mb"
    )
