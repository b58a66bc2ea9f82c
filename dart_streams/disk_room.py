"""Free bytes and free files (inodes) of a file system, errors of writing to it, and folders of one user."""

import errno
import os
import re
from pathlib import Path
from typing import NamedTuple

from dart_streams.errors import UserError

OTHER_PLACE = "choose another place, or get the rights"
REMEDIES = {
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "remove files of this user there, or get a larger quota",
    errno.EROFS: "mount its file system writable, or choose another place",
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.ENOTDIR), OTHER_PLACE),
}
"""What to do about an error of writing."""
ERROR = re.compile(r"\[Errno (\d+)\][^'\n]*(?:(?:'[^'\n]+' -> )?'([^'\n]+)')?")
"""An OSError as a text: its number and its file."""
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
    """Return the room of a folder's file system; a folder that is missing has that of the one above it."""
    stats = os.statvfs(next(each for each in (folder, *folder.parents) if each.exists()))
    return DiskRoom(stats.f_bavail * stats.f_frsize, stats.f_favail if stats.f_files else None)


def refusal_of(error: OSError, place: Path | None = None) -> UserError | None:
    """Return the error for the user if a disk is full or not writable, else None.

    It names ``place``, or the error's file if that is elsewhere, since it may be on another disk.
    """
    if (remedy := REMEDIES.get(error.errno or 0)) is None:
        return None
    named = error.filename2 or error.filename  # the second one is written, as of a copy
    if place and (not isinstance(named, str) or Path(named).absolute().is_relative_to(place.absolute())):
        named = place
    return UserError(f"{named or 'a file'} can't be written: {error.strerror}; {remedy}")


def remedy_of(reason: str, folder: Path) -> str:
    """Return where an error of writing was, and what to do, by its text: those of other processes are texts.

    Where it names no file or number, it is said how much room ``folder`` has.
    """
    found = ERROR.search(reason)
    number, place = (int(found[1]), Path(found[2]).parent if found[2] else folder) if found else (0, folder)
    room = "" if number in REMEDIES.keys() - {errno.ENOSPC} else f"{room_at(place)} at "
    return f"{room}{place}: {REMEDIES.get(number, 'make room there if it is full')}"


def make_private(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for this user alone: screens and prompts are in its files.

    A folder that is there keeps its mode, for its user may share it.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(0o700, exist_ok=True)
