"""Cache folder of a worker's evaluators; the next worker removes it if this one is killed."""

import os
from pathlib import Path

from dart_streams.socket_folder import LockedFolder, remove_abandoned

PREFIX = "dart-evaluators-"


class EvaluatorCache(LockedFolder):
    """The folder, below ``parent`` (default: the temporary folder)."""

    def __init__(self, parent: Path | None = None) -> None:
        remove_abandoned(PREFIX, parent)
        super().__init__(PREFIX, parent)

    def give(self, folder: Path, user: int | None) -> None:
        """Let ``user`` read a folder in this one, whose other folders and names it does not see."""
        if user is not None:
            self.folder.chmod(0o711)
            for path in (folder, *folder.rglob("*")):
                os.chown(path, user, user, follow_symlinks=False)
