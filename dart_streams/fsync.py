"""Durable files and folders: they survive a crash of the machine once the call has returned."""

import os
from pathlib import Path


def write(file: Path, data: bytes) -> None:
    """Write a file and flush it to disk; its directory entry is durable once the folder is synced."""
    with file.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def sync(path: Path) -> None:
    """Flush a file's contents, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
