"""The memory that this process may use."""

import os
from collections.abc import Iterable
from pathlib import Path

CONTROL_GROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Where a container reads its own limit: version 2, version 1."""


def memory_limit(files: Iterable[Path] = CONTROL_GROUPS) -> int:
    """Return the bytes of the container's limit, or of the machine's memory if that is less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in files:
        try:
            limits.append(int(file.read_text()))
        except (OSError, ValueError):  # there is none, or it says "max"
            continue
    return min(limits)
