"""A small disk, to be filled: a file system in memory, mounted for a test."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

FILLER = "filler"
BLOCK = bytes(4096)


def possible() -> str:
    """Return why this machine can't mount a file system, empty if it can."""
    return "" if os.geteuid() == 0 else "mounting a small disk needs root"


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """Mount an empty file system of this size on a folder, which is made; it is unmounted at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


def fill(folder: Path) -> None:
    """Take every byte that is left of a folder's disk."""
    with contextlib.suppress(OSError), (folder / FILLER).open("ab", buffering=0) as filler:
        free = os.statvfs(folder)
        with contextlib.suppress(OSError):
            os.posix_fallocate(filler.fileno(), 0, free.f_bavail * free.f_frsize)
        while True:
            filler.write(BLOCK)


def make_room(folder: Path) -> None:
    """Give back what :func:`fill` has taken."""
    (folder / FILLER).unlink(missing_ok=True)
