"""File systems of weights, checkpoints and screenshots, the local disk or any of fsspec's, with uniform errors.

An unreachable store raises another error than a missing file, whatever its library raises.
"""

import contextlib
import errno
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import fsspec

from dart_streams import fsync as durable
from dart_streams.errors import ServiceUnavailable, UserError

OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci", "obs"})
"""fsspec protocols of stores without folders, whose objects appear complete or not at all."""
TEMPORARY_ERRORS = frozenset(
    getattr(errno, name)
    for name in ("EAGAIN", "EBUSY", "EHOSTUNREACH", "EIO", "ENETUNREACH", "EPIPE", "EREMOTEIO", "ETIMEDOUT")
    if hasattr(errno, name)
)
"""Error numbers of a temporary failure; connections and timeouts have their own classes."""
READ_BYTES = 32 << 20
SHORTEST_CALL_S = 0.5
"""Least time for one call, as 0 would be no bound."""
S3_TRIES = 2
"""Tries of a request by s3fs, and by botocore within each. Callers retry, and log what they wait for.

With the libraries' five of each, a server that never answers a read blocks it for more than six minutes.
"""


class StorageUnreachable(ServiceUnavailable, OSError):
    """A store of files does not answer properly; callers retry."""


class Storage(NamedTuple):
    """The directory ``folder`` on a file system; ``uri`` names both."""

    filesystem: fsspec.AbstractFileSystem
    folder: str
    uri: str

    @property
    def protocols(self) -> tuple[str, ...]:
        """URL schemes of the file system."""
        protocol = self.filesystem.protocol
        return (protocol,) if isinstance(protocol, str) else tuple(protocol)

    @property
    def is_local(self) -> bool:
        """Whether it is the local disk."""
        return "file" in self.protocols

    @property
    def has_folders(self) -> bool:
        """Whether it has folders and renames files, unlike object stores."""
        return not OBJECT_STORES.intersection(self.protocols)

    @contextlib.contextmanager
    def reached(self) -> Iterator[None]:
        """Raise :class:`StorageUnreachable` for a store's errors in the block.

        These are the errors of an outage (:func:`is_outage`).
        """
        try:
            yield
        except Exception as error:
            if self.is_local or not is_outage(error):
                raise
            reason = str(error) or "no answer in time"
            raise StorageUnreachable(f"{self.uri} can't be reached ({type(error).__name__}: {reason})") from error

    def bound(self, seconds: float) -> dict[str, float]:
        """Return the argument that bounds a call of the file system, where its kind takes one."""
        return {"timeout": max(seconds, SHORTEST_CALL_S)} if self.filesystem.async_impl else {}

    def make_folder(self) -> None:
        """Create the directory if the store has any; a bucket is never created, since its name may be a mistake."""
        if self.has_folders:
            self.filesystem.makedirs(self.folder, exist_ok=True)

    def put(self, file: Path, name: str) -> None:
        """Copy a local file to ``name``, which appears once it is complete.

        On a local disk it is durable on return, as are files of :meth:`write`.
        """
        if not self.has_folders:
            self.filesystem.put_file(str(file), f"{self.folder}/{name}")
            return
        partial = f"{name}.partial"
        self.filesystem.put_file(str(file), f"{self.folder}/{partial}")
        self._sync(partial)
        self.filesystem.mv(f"{self.folder}/{partial}", f"{self.folder}/{name}")
        if self.is_local:
            durable.sync(Path(self.folder))
            durable.sync(Path(self.folder).parent)

    def write(self, name: str, data: bytes, **bound: float) -> None:
        """Write a small file, within a :meth:`bound` if one is given."""
        self.filesystem.pipe_file(f"{self.folder}/{name}", data, **bound)
        self._sync(name)

    def _sync(self, name: str) -> None:
        if self.is_local:
            durable.sync(Path(self.folder) / name)

    def digest(self, name: str) -> str:
        """Return a file's SHA-256 (hex); raise FileNotFoundError if it is missing."""
        with self.filesystem.open(f"{self.folder}/{name}", "rb", block_size=READ_BYTES) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()


def is_outage(error: Exception) -> bool:
    """Return whether an error of a store means that it is unavailable.

    The stores' libraries have no common base class of errors (botocore, aiohttp, Azure). Some of theirs are OSErrors,
    without a number, as botocore's time-outs.
    """
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    if not isinstance(error, OSError):
        return not isinstance(error, UserError)
    is_of_library = error.errno is None and type(error).__module__ != "builtins"
    return error.errno in TEMPORARY_ERRORS or (is_of_library and not isinstance(error, UserError))


def open_storage(uri: str) -> Storage:
    """Return the storage at a path or a fsspec URL, uncached; raise UserError for an unknown protocol."""
    try:
        filesystem, folder = fsspec.core.url_to_fs(uri if "://" in uri else "file://")
        if "://" not in uri:
            folder = str(Path(uri).expanduser().absolute())  # fsspec would split it at `::`.
    except (ImportError, ValueError) as error:
        raise UserError(
            f"{uri} can't be used ({error}): see trainer.weights_uri, trainer.checkpoints_uri and store.objects.uri"
        ) from error
    filesystem.invalidate_cache()  # others write there too
    storage = Storage(filesystem, folder, uri)
    if "s3" in storage.protocols and hasattr(filesystem, "config_kwargs"):
        bound_requests(filesystem)
    return storage


def bound_requests(filesystem: Any) -> None:
    """Bound the time and the tries of S3's requests; ``config_kwargs`` of a user's fsspec configuration are kept."""
    from dart_streams.s3_session import BoundedSession

    filesystem.config_kwargs.setdefault("retries", {"total_max_attempts": S3_TRIES})
    filesystem.config_kwargs.setdefault("http_session_cls", BoundedSession)
    filesystem.retries = S3_TRIES
