"""Cache folder of a worker's evaluators; the next worker removes it if this one is killed."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "dart-evaluators-"


class EvaluatorCache:
    """A folder below ``parent`` (default: the temporary folder), which is locked while it is in use."""

    def __init__(self, parent: Path | None = None) -> None:
        parent = parent or Path(tempfile.gettempdir())
        remove_abandoned(parent)
        while True:
            self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
            # Before it is locked, another worker may remove it as abandoned.
            if (descriptor := lock(self.folder)) is not None:
                self._descriptor: int | None = descriptor
                return

    def give(self, folder: Path, user: int | None) -> None:
        """Let ``user`` read a folder in this one, whose other folders and names it does not see."""
        if user is not None:
            self.folder.chmod(0o711)
            for path in (folder, *folder.rglob("*")):
                os.chown(path, user, user, follow_symlinks=False)

    def remove(self) -> None:
        """Remove the folder; never raises."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def remove_abandoned(parent: Path) -> None:
    """Remove this user's unlocked folders."""
    for folder in parent.glob(f"{PREFIX}*"):
        if (descriptor := lock(folder)) is not None:
            if os.fstat(descriptor).st_uid == os.geteuid():
                shutil.rmtree(folder, ignore_errors=True)
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
