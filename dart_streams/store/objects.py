"""Screenshots in an object store (``store.objects``), as objects named by their digest."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tenacity import Retrying

from dart_streams.config import Store
from dart_streams.connection.retrying import retry_arguments
from dart_streams.deadline import Deadline
from dart_streams.errors import AccessRefused, ConfigError, ServiceUnavailable
from dart_streams.file_storage import Storage, StorageUnreachable, open_storage

THREADS = 16
"""Concurrent requests of a process."""
RETRY_INTERVAL_S = 0.5
TRY_S = 10.0
"""Longest time of one try, after which the outage is logged: no screenshot takes as long on a working store."""
DAMAGED = "FlexibleChecksumError"
"""botocore's error of bytes with another checksum, by name, as botocore may not be installed."""

T = TypeVar("T")
Bound = dict[str, float]
"""Arguments of a file system's call that bound its time (:meth:`Storage.bound`)."""


class BlobObjects:
    """Objects below ``uri``; thread-safe. While the store is away or does not answer, calls are retried for ``wait_s``.

    They then raise :class:`ServiceUnavailable`. A store that refuses raises :class:`AccessRefused` or ConfigError.
    """

    def __init__(self, uri: str, wait_s: float) -> None:
        self.uri = uri
        self.wait_s = wait_s
        self._storage = open_storage(uri)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="objects")

    def put(self, sha256: str, data: bytes) -> None:
        """Write an object; durable on return."""

        def write(storage: Storage, bound: Bound) -> None:
            storage.make_folder()
            storage.write(sha256, data, **bound)

        try:
            self._reach(sha256, write)
        except FileNotFoundError:
            raise ConfigError(
                f"store.objects.uri: {self.uri} does not exist: make its bucket, or correct the name"
            ) from None

    def get(self, sha256: str) -> bytes | None:
        """Return an object; None if there is none, or if the store notices that it is damaged."""
        with contextlib.suppress(FileNotFoundError):
            return self._reach(
                sha256, lambda storage, bound: bytes(storage.filesystem.cat_file(f"{storage.folder}/{sha256}", **bound))
            )
        return None

    def size(self, sha256: str) -> int:
        """Return the bytes of an object; -1 if there is none, or if these keys may only write."""
        with contextlib.suppress(FileNotFoundError, AccessRefused):
            return self._reach(
                sha256, lambda storage, bound: int(storage.filesystem.size(f"{storage.folder}/{sha256}", **bound))
            )
        return -1

    def get_many(self, digests: Sequence[str]) -> list[bytes | None]:
        """Return objects, read concurrently; None for each that there is not."""
        return list(self._pool.map(self.get, digests))

    def remove(self, digests: Iterable[str]) -> None:
        """Remove objects that may be there."""
        list(self._pool.map(self._remove, digests))

    async def run(self, act: Callable[..., T], *arguments: object) -> T:
        """Return the result of a call of this class without blocking the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, act, *arguments)

    def _remove(self, sha256: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._reach(
                sha256, lambda storage, bound: storage.filesystem.rm_file(f"{storage.folder}/{sha256}", **bound)
            )

    def _reach(self, sha256: str, act: Callable[[Storage, Bound], T]) -> T:
        """Return the result of ``act`` on the folder of an object, which its first two digits name."""
        storage = self._storage._replace(folder=f"{self._storage.folder}/{sha256[:2]}")
        deadline, failures = Deadline(self.wait_s), list[StorageUnreachable]()
        retrying = retry_arguments(
            deadline,
            min(RETRY_INTERVAL_S, self.wait_s / 10),
            "object store of screenshots",
            retryable=lambda error: isinstance(error, StorageUnreachable),
            # The first one has the reason: the last try may have had no time.
            unavailable=lambda _: ServiceUnavailable(f"{failures[0]} for {self.wait_s:g} s: see store.objects.uri"),
        )

        def reach() -> T:
            try:
                with storage.reached():
                    return act(storage, storage.bound(min(TRY_S, deadline.remaining_s)))
            except StorageUnreachable as error:
                failures.append(error)
                if type(error.__cause__).__name__ != DAMAGED:
                    raise
                raise FileNotFoundError(f"{self.uri}: {sha256} is damaged ({error.__cause__})") from error

        try:
            found: T = Retrying(**retrying)(reach)
        except PermissionError as error:
            raise AccessRefused(
                f"{self.uri} refuses a screenshot ({error}): the keys need to read, write and list there"
            ) from None
        return found


def open_objects(store: Store) -> BlobObjects | None:
    """Return the object store of screenshots; None if they are in Cassandra."""
    return BlobObjects(store.objects.uri, store.wait_s) if store.objects.uri else None
