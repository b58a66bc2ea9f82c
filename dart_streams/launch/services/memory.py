"""Whether the local services fit into memory: checked before they start, because the kernel kills what does not."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from dart_streams.errors import ServiceUnavailable
from dart_streams.launch.services.jvm import Service

MIB = 2**20
CGROUPS = Path("/sys/fs/cgroup")
OWN_GROUP = Path("/proc/self/cgroup")
NO_MEMORY = ("Could not reserve enough space", "insufficient memory", "Cannot allocate memory")
"""What a JVM without memory logs."""
FULL_HEAP = "OutOfMemoryError"


def refuse_too_little(services: Sequence[Service]) -> None:
    """Return if what is free is enough for ``services``, none of which runs yet.

    Raises
    ------
    ServiceUnavailable
        If it is not; the text says what they need, what there is, and whose limit it is.
    """
    needed = sum(service.heap_mb + service.overhead_mb for service in services)
    free, bound = min([(machine_mb(), "this machine"), *limits_mb()])
    if services and needed > free:
        what = " and ".join(
            f"{each.title} {each.heap_mb + each.overhead_mb} (services.{each.name}_heap_mb = {each.heap_mb})"
            for each in services
        )
        raise ServiceUnavailable(
            f"too little memory: in MiB, {what} need {needed}, and {bound} has {free} free: end other programs, "
            "raise the limit, or lower the heaps"
        )


def machine_mb() -> int:
    """Return how many MiB processes of this machine can still get."""
    return int(psutil.virtual_memory().available // MIB)


def limits_mb(groups: Path = CGROUPS, own: Path = OWN_GROUP) -> list[tuple[int, str]]:
    """Return how many MiB each limited control group that this process is in has left, and the group's name.

    Cached files do not count as taken: the kernel drops them first.
    """
    left = []
    for folder, names in folders(groups, own):
        limit, taken = (number(folder / name) for name in names[:2])
        if limit is not None and taken is not None:
            cached = sum(cache_of(folder / "memory.stat", key) for key in names[2:])
            left.append((max(0, limit - taken + cached) // MIB, f"the control group {folder}"))
    return left


V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file")
V2 = ("memory.max", "memory.current", "inactive_file", "active_file")


def folders(groups: Path, own: Path) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Yield the folders of this process's control groups, up to the root, with the names of their files.

    A container sees its own group as the root, whatever its path is outside.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers not in ("", "memory"):
            continue
        root, names = (groups / "memory", V1) if controllers else (groups, V2)
        place = root / path.lstrip("/")
        yield from ((folder, names) for folder in (place, *place.parents) if folder.is_relative_to(root))


def number(file: Path) -> int | None:
    """Return the number in a file; None if there is none: ``max`` means that there is no limit."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def cache_of(file: Path, key: str) -> int:
    """Return the bytes that a group's statistics have under ``key``."""
    try:
        found = dict(line.split(maxsplit=1) for line in file.read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(found.get(key, "0"))


def lack(log_end: str, *, killed: bool, service: Service) -> str:
    """Return what to add about the death of a service if it is one for lack of memory; empty otherwise."""
    if FULL_HEAP in log_end:
        return f", for its heap is too small: raise services.{service.name}_heap_mb (it is {service.heap_mb})"
    if not killed and not any(words in log_end for words in NO_MEMORY):
        return ""
    how = "it was killed, as the kernel does" if killed else "it got no memory"
    return (
        f", for lack of memory as it seems ({how}): it needs about {service.heap_mb + service.overhead_mb} MiB; end "
        f"other programs, raise the limit, or lower services.{service.name}_heap_mb"
    )
