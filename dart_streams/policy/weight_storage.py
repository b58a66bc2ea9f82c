"""The file system that weights lie on, the local disk or any that fsspec knows: its errors in one way.

A store that can't be reached is another error than a file that is missing, whatever its library raises.
"""

import contextlib
import errno
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import fsspec

from dart_streams import fsync as durable
from dart_streams.errors import ServiceUnavailable, UserError

OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci", "obs"})
"""fsspec's protocols of stores without folders, where an object is there whole or not at all."""
AWAY = frozenset(
    getattr(errno, name)
    for name in ("EAGAIN", "EBUSY", "EHOSTUNREACH", "EIO", "ENETUNREACH", "EPIPE", "EREMOTEIO", "ETIMEDOUT")
    if hasattr(errno, name)
)
"""What a store's library says by these is over by and by; connections and time-outs have classes of their own."""
BLOCK = 32 << 20
"""Bytes of a file that are read at a time."""


class StorageUnreachable(ServiceUnavailable, OSError):
    """The store of the weights does not answer, or not sensibly; it is tried again."""


class Storage(NamedTuple):
    """The directory ``folder`` on a file system; ``uri`` names both."""

    filesystem: fsspec.AbstractFileSystem
    folder: str
    uri: str

    @property
    def protocols(self) -> tuple[str, ...]:
        """The URL schemes that the file system answers to."""
        protocol = self.filesystem.protocol
        return (protocol,) if isinstance(protocol, str) else tuple(protocol)

    @property
    def is_local(self) -> bool:
        """Whether it is this machine's disk."""
        return "file" in self.protocols

    @property
    def has_folders(self) -> bool:
        """Whether folders are made, and files renamed: not where objects are whole from the first."""
        return not OBJECT_STORES.intersection(self.protocols)

    @contextlib.contextmanager
    def reached(self) -> Iterator[None]:
        """Raise :class:`StorageUnreachable` for whatever else than OSError a store's library raises in the block.

        So too for an OSError that says that the store is away. UserErrors pass.
        """
        try:
            yield
        except UserError:
            raise
        except OSError as error:
            is_away = isinstance(error, ConnectionError | TimeoutError) or error.errno in AWAY
            if self.is_local or not is_away:
                raise
            raise self._unreachable(error) from error
        except Exception as error:
            # Each store's library has classes of its own, without a common base (botocore's, aiohttp's, Azure's).
            if self.is_local:
                raise
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> StorageUnreachable:
        return StorageUnreachable(f"{self.uri} can't be reached ({type(error).__name__}: {error})")

    def make_folder(self) -> None:
        """Make the directory where there are such; a bucket is never made, because its name may be a mistake."""
        if self.has_folders:
            self.filesystem.makedirs(self.folder, exist_ok=True)

    def put(self, file: Path, name: str) -> None:
        """Copy a local file to the directory under ``name``, which it has only when it is complete.

        On a local disk it is durable on return, as are the directory's other files that :meth:`write` wrote.
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

    def write(self, name: str, data: bytes) -> None:
        """Write a small file of the directory."""
        self.filesystem.pipe_file(f"{self.folder}/{name}", data)
        self._sync(name)

    def _sync(self, name: str) -> None:
        if self.is_local:
            durable.sync(Path(self.folder) / name)

    def digest(self, name: str) -> str:
        """Return the SHA-256 (hex) of a file; raise FileNotFoundError if there is none."""
        found = hashlib.sha256()
        with self.filesystem.open(f"{self.folder}/{name}", "rb", block_size=BLOCK) as stream:
            while block := stream.read(BLOCK):
                found.update(block)
        return found.hexdigest()


def open_storage(uri: str) -> Storage:
    """Return the storage at a fsspec URL, as it is now; raise UserError if its protocol is not known here."""
    try:
        filesystem, folder = fsspec.core.url_to_fs(uri)
    except (ImportError, ValueError) as error:
        raise UserError(f"{uri} can't be used for weights ({error}): see trainer.weights_uri") from error
    filesystem.invalidate_cache()  # others write there too
    return Storage(filesystem, folder, uri)
