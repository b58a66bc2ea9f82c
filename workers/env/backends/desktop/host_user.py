"""Whom a worker that is root lets a sandbox be: a user of its own, for the kernel counts by user what it gives.

Watches of files, pipes, keys and pending signals of one desktop are then none of its neighbor's.
"""

import itertools
import os
from pathlib import Path

NOBODY = 65534
FIRST = 0x70000000
"""Above all users that systems and containers are given."""
DESKTOPS = 256
"""Of a worker, until it begins again with the first one's user."""
UID_MAP = Path("/proc/self/uid_map")
_number = itertools.count()


def next_user(uid_map: Path = UID_MAP) -> int:
    """Return a user that no other sandbox of this machine is; nobody where this worker's namespace has only a few."""
    wanted = FIRST + os.getpid() * DESKTOPS + next(_number) % DESKTOPS
    return wanted if is_mapped(wanted, uid_map.read_text()) else NOBODY


def is_mapped(user: int, uid_map: str) -> bool:
    """Return whether a namespace has a user: lines of its first one, the one outside, and how many there are."""
    ranges = ([int(word) for word in line.split()] for line in uid_map.splitlines())
    return any(first <= user < first + count for first, _, count in ranges)
