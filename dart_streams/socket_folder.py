"""Folders of temporary files: for Unix sockets, whose paths have at most 107 bytes, private ones, and ones in use."""

import contextlib
import fcntl
import os
import stat
import subprocess
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


class LockedFolder:
    """A folder below ``parent`` (default: the temporary folder), which is locked while it is in use."""

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        while True:
            self.folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            # Before it is locked, another process may remove it as abandoned.
            if (descriptor := lock(self.folder)) is not None:
                self._descriptor: int | None = descriptor
                return

    def remove(self) -> None:
        """Remove the folder; never raises."""
        with contextlib.suppress(OSError):  # Of no room for a process. The folder may be of any depth.
            subprocess.call(["rm", "-rf", str(self.folder)], stderr=subprocess.DEVNULL)
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def remove_abandoned(prefix: str, parent: Path | None = None) -> None:
    """Remove this user's unlocked folders: a killed process left them."""
    for folder in (parent or Path(tempfile.gettempdir())).glob(f"{prefix}*"):
        if (descriptor := lock(folder)) is not None:
            if os.fstat(descriptor).st_uid == os.geteuid():
                subprocess.call(["rm", "-rf", str(folder)], stderr=subprocess.DEVNULL)
            os.close(descriptor)


def lock(folder: Path) -> int | None:
    """Lock a folder and return the lock's descriptor, None if it is locked already or gone."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink:
                return descriptor
        except BlockingIOError:
            pass
        os.close(descriptor)
    return None
