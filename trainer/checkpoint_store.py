"""Copies of checkpoints in an object store: a folder for each, whose manifest comes last and makes it complete.

The upload of a killed trainer has no manifest and is never read. Names contain the epoch, which one trainer claims, so
no upload overwrites another.
"""

import contextlib
import functools
import shutil
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import structlog
from tenacity import Retrying

from dart_streams.connection.retrying import retry_arguments
from dart_streams.deadline import Deadline
from dart_streams.errors import ServiceUnavailable
from dart_streams.file_storage import Storage, StorageUnreachable, open_storage
from trainer.checkpoint_manifest import MANIFEST, CheckpointManifest, read
from trainer.version_writer import RETRY_INTERVAL_S, STORE_TIMEOUT_S

Item = TypeVar("Item")

log = structlog.get_logger()


class CheckpointStore:
    """Checkpoints beneath ``uri``, any fsspec URL. Calls wait for an unreachable store until ``stop`` is set.

    They raise :class:`~dart_streams.file_storage.StorageUnreachable` after
    :data:`~trainer.version_writer.STORE_TIMEOUT_S`, and OSError if the store refuses.
    """

    def __init__(self, uri: str, stop: threading.Event | None = None) -> None:
        self.uri = uri
        self.stop = stop or threading.Event()

    def upload(self, files: Iterable[Path], name: str) -> None:
        """Copy ``files`` to the checkpoint ``name``, in order; each appears once it is complete."""
        for file in files:
            self._patiently(functools.partial(_put, file=file), name)

    def names(self) -> list[str]:
        """Return the names of complete checkpoints, unordered."""
        return [name for name in self._patiently(_list) if self._patiently(_has_manifest, name)]

    def fetch(self, name: str, target: Path) -> str:
        """Copy a checkpoint to the folder ``target``; return the fault of the copy, empty if none.

        Files that an earlier copy left there whole are kept, and others removed. Digests of new ones are checked by the
        reader.
        """
        target.mkdir(parents=True, exist_ok=True)
        self._patiently(functools.partial(_get, name=MANIFEST, target=target), name)
        manifest = read(target)
        if isinstance(manifest, str):
            return manifest
        return self._fetch_files(name, manifest, target)

    def _fetch_files(self, name: str, manifest: CheckpointManifest, target: Path) -> str:
        for path in target.iterdir():
            if path.name not in {MANIFEST, *(file.name for file in manifest.files)}:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for file in manifest.files:
            if not file.damage_in(target):
                continue
            try:
                self._patiently(functools.partial(_get, name=file.name, target=target), name)
            except FileNotFoundError:
                return f"{file.name} is missing in {self.uri}/{name}"
        return ""

    def remove(self, names: Iterable[str]) -> None:
        """Remove checkpoints, the manifest first; a store that fails is logged, and the next removal repeats it."""
        for name in names:
            storage = open_storage(f"{self.uri}/{name}")
            try:
                with storage.reached():
                    for path in (f"{storage.folder}/{MANIFEST}", storage.folder):
                        with contextlib.suppress(FileNotFoundError):
                            storage.filesystem.rm(path, recursive=path == storage.folder)
            except OSError as error:
                log.warning("old checkpoint not removed", uri=storage.uri, reason=str(error))

    def folders(self) -> list[str]:
        """Return the names of all folders, those of incomplete uploads included; empty if the store fails."""
        try:
            storage = open_storage(self.uri)
            with storage.reached():
                return _list(storage)
        except OSError as error:
            log.warning("old checkpoints not listed", uri=self.uri, reason=str(error))
            return []

    def _patiently(self, act: Callable[[Storage], Item], name: str = "") -> Item:
        """Return the result of ``act`` on the store or a checkpoint's folder, retried while it is unreachable."""
        deadline = Deadline(STORE_TIMEOUT_S)
        retrying = retry_arguments(
            deadline, RETRY_INTERVAL_S, "checkpoint store", lambda e: isinstance(e, StorageUnreachable), _as_unavailable
        )
        stop = self.stop
        retrying |= {"sleep": stop.wait, "stop": lambda _: deadline.expired or stop.is_set()}

        def reach() -> Item:
            storage = open_storage(f"{self.uri}/{name}".rstrip("/"))
            with storage.reached():
                return act(storage)

        found: Item = Retrying(**retrying)(reach)
        return found


def _as_unavailable(error: BaseException) -> ServiceUnavailable:
    assert isinstance(error, ServiceUnavailable), error
    return error


def _put(storage: Storage, file: Path) -> None:
    storage.make_folder()
    storage.put(file, file.name)


def _get(storage: Storage, name: str, target: Path) -> None:
    partial = target / f".{name}.partial"
    storage.filesystem.get_file(f"{storage.folder}/{name}", str(partial))
    partial.replace(target / name)


def _list(storage: Storage) -> list[str]:
    try:
        paths = storage.filesystem.ls(storage.folder, detail=False)
    except FileNotFoundError:
        return []
    return [name for path in paths if (name := path.rstrip("/").rpartition("/")[2])]


def _has_manifest(storage: Storage) -> bool:
    return bool(storage.filesystem.exists(f"{storage.folder}/{MANIFEST}"))
