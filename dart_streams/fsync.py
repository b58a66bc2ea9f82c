"""Files and folders that are on the disk when the call returns, also if the machine stops the next moment."""

import os
from pathlib import Path


def write(file: Path, data: bytes) -> None:
    """Write a file and return when it is on the disk; its name is there once the folder is synced."""
    with file.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def sync(path: Path) -> None:
    """Return when a file's contents, or a folder's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
