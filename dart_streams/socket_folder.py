"""A folder for the sockets of local processes: their paths have at most 107 bytes, and TMPDIR may be longer."""

import os
import tempfile
from pathlib import Path

from dart_streams.errors import ServiceUnavailable

LONGEST_PATH = 107
"""Bytes of a Unix socket's path, without the end that the kernel wants."""
ROOM = 64
"""Bytes below the folder: a name that is unlike all others (``vllm``'s, of 37, is the longest), and one in it."""
OTHERS = ("/tmp", "/var/tmp", "/dev/shm")


def socket_folder() -> Path:
    """Return the folder of temporary files, or one whose path is short enough.

    Raises :class:`ServiceUnavailable` if there is none that this user may write to.
    """
    wanted = tempfile.gettempdir()
    for folder in (wanted, os.environ.get("XDG_RUNTIME_DIR", ""), *OTHERS):
        if folder and fits(folder) and os.access(folder, os.W_OK | os.X_OK):
            return Path(folder)
    raise ServiceUnavailable(
        f"TMPDIR is {wanted}, too long a path for sockets, which may have {LONGEST_PATH - ROOM} bytes: set another one"
    )


def fits(folder: str) -> bool:
    """Return whether sockets below a folder have a path that the kernel takes."""
    return len(os.fsencode(folder)) + ROOM <= LONGEST_PATH
