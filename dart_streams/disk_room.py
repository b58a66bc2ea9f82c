"""Free bytes and free files (inodes) of a file system, errors of writing to it, and folders of one user."""

import errno
import os
from pathlib import Path
from typing import NamedTuple

from dart_streams.errors import UserError

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR})
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


def refusal_of(error: OSError, place: Path | None = None) -> UserError | None:
    """Return the error for the user if a disk is full or not writable, else None; ``place`` instead of its file."""
    if error.errno not in FULL | REFUSED:
        return None
    remedy = "make room there" if error.errno in FULL else "choose another place, or get the rights"
    return UserError(f"{place or error.filename or 'a file'} can't be written: {error.strerror}; {remedy}")


def make_private(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for this user alone: screens and prompts are in its files.

    A folder that is there keeps its mode, for its user may share it.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(0o700, exist_ok=True)
