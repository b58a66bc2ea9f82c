"""Folders of temporary files: one for Unix sockets, whose paths have at most 107 bytes, and what is private there."""

import os
import stat
import tempfile
from pathlib import Path

from dart_streams.errors import ServiceUnavailable

LONGEST_PATH = 107
"""Bytes of a Unix socket's path, without the final NUL."""
ROOM = 64
"""Bytes below the folder: a unique name (vLLM's of 37 is the longest), and a name in it."""
OTHERS = ("/tmp", "/var/tmp", "/dev/shm")


def socket_folder() -> Path:
    """Return a writable folder of temporary files with a short path; raise :class:`ServiceUnavailable` without one."""
    wanted = tempfile.gettempdir()
    for folder in (wanted, os.environ.get("XDG_RUNTIME_DIR", ""), *OTHERS):
        if folder and len(os.fsencode(folder)) + ROOM <= LONGEST_PATH and os.access(folder, os.W_OK | os.X_OK):
            return Path(folder)
    raise ServiceUnavailable(
        f"TMPDIR is {wanted}, too long a path for sockets, which may have {LONGEST_PATH - ROOM} bytes: set another one"
    )


def is_private(path: Path) -> bool:
    """Return whether a path is this user's, closed to others and no link; raise OSError if there is none."""
    found = path.lstat()
    return found.st_uid == os.geteuid() and not stat.S_ISLNK(found.st_mode) and not found.st_mode & 0o077
