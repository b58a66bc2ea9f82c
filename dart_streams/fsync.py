"""Durable files and folders, which survive a crash of the machine after the call."""

import os
from pathlib import Path


def write(file: Path, data: bytes) -> None:
    """Write a file and flush it to disk; :func:`sync` of its folder makes its entry durable."""
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


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file in one step; a crash of the machine may undo it."""
    fresh = path.with_suffix(".new")
    fresh.write_bytes(data)
    fresh.replace(path)
