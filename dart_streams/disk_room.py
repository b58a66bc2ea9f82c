"""Free bytes and free files (inodes) of a file system."""

import os
from pathlib import Path
from typing import NamedTuple

FEW_FILES = 10_000
"""A run creates thousands: segments of topics and tables, weights, logs."""


class DiskRoom(NamedTuple):
    """Room for this user; ``files`` is None without a bound."""

    bytes: int
    files: int | None

    def __str__(self) -> str:
        if self.files is not None and self.files < FEW_FILES:
            return f"{self.bytes / 1e6:.0f} MB but only {self.files} files (inodes) are free"
        return f"{self.bytes / 1e6:.0f} MB are free"


def room_at(folder: Path) -> DiskRoom:
    """Return the room of a folder's file system."""
    stats = os.statvfs(folder)
    return DiskRoom(stats.f_bavail * stats.f_frsize, stats.f_favail if stats.f_files else None)
