"""How much room a file system has: bytes, and files, which run out apart (as inodes)."""

import os
from pathlib import Path
from typing import NamedTuple

FEW_FILES = 10_000
"""A run makes thousands: segments of topics and tables, weights, logs."""


class DiskRoom(NamedTuple):
    """What this user may still write; ``files`` is None where the file system has no bound of its own."""

    bytes: int
    files: int | None

    def __str__(self) -> str:
        if self.files is not None and self.files < FEW_FILES:
            return f"{self.bytes / 1e6:.0f} MB but only {self.files} files (inodes) are free"
        return f"{self.bytes / 1e6:.0f} MB are free"


def room_at(folder: Path) -> DiskRoom:
    """Return the room of a folder's file system."""
    found = os.statvfs(folder)
    return DiskRoom(found.f_bavail * found.f_frsize, found.f_favail if found.f_files else None)
