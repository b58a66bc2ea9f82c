"""Blobs: content-addressed by sha256, chunked, with an LRU cache. Pure."""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from topics.values import BlobRef

CHUNK_BYTES = 256 * 1024


class MissingBlob(Exception):
    """A blob that is absent, incomplete, expired or corrupt."""

    def __init__(self, ref: BlobRef, reason: str) -> None:
        super().__init__(f"blob {ref.sha256[:12]}… ({ref.size} bytes): {reason}")
        self.ref = ref


class BlobCache:
    """A thread-safe LRU cache of blobs by sha256, of at most ``limit_bytes``."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.bytes = 0
        self._blobs: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, sha256: str) -> bytes | None:
        """Return a blob and mark it as used, or None."""
        with self._lock:
            data = self._blobs.get(sha256)
            if data is not None:
                self._blobs.move_to_end(sha256)
            return data

    def put(self, sha256: str, data: bytes) -> None:
        """Add a blob and evict the least recently used; a blob larger than the cache is skipped."""
        if len(data) > self.limit_bytes:
            return
        with self._lock:
            self.bytes += len(data) - len(self._blobs.pop(sha256, b""))
            self._blobs[sha256] = data
            while self.bytes > self.limit_bytes:
                _, oldest = self._blobs.popitem(last=False)
                self.bytes -= len(oldest)

    def drop(self, sha256: str) -> None:
        """Remove a blob if present."""
        with self._lock:
            self.bytes -= len(self._blobs.pop(sha256, b""))


def ref_of(data: bytes, media_type: str, width: int = 0, height: int = 0) -> BlobRef:
    """Return the claim check of ``data``."""
    return BlobRef(
        sha256=hashlib.sha256(data).hexdigest(), size=len(data), media_type=media_type, width=width, height=height
    )


def split_chunks(data: bytes) -> list[bytes]:
    """Split a blob into chunks of :data:`CHUNK_BYTES`; an empty blob has one empty chunk."""
    return [data[start : start + CHUNK_BYTES] for start in range(0, max(len(data), 1), CHUNK_BYTES)]


def chunk_count(size: int) -> int:
    """Return the number of chunks of a blob of ``size`` bytes."""
    return max(1, -(-size // CHUNK_BYTES))


def join_chunks(ref: BlobRef, pieces: Iterable[bytes]) -> bytes:
    """Join the chunks of a blob; raise :class:`MissingBlob` unless size and digest match ``ref``."""
    data = b"".join(pieces)
    if not data and ref.size:
        raise MissingBlob(ref, "not in the store")
    if len(data) != ref.size:
        raise MissingBlob(ref, f"only {len(data)} bytes are in the store")
    if hashlib.sha256(data).hexdigest() != ref.sha256:
        raise MissingBlob(
            ref, "the stored bytes have another digest; an environment that shows this screen again writes it anew"
        )
    return data


def join_named(sha256: str, pieces: Sequence[bytes]) -> bytes:
    """Join the chunks of a blob whose digest alone is known; raise :class:`MissingBlob` unless it matches."""
    size = sum(map(len, pieces))
    if not size:
        raise MissingBlob(BlobRef(sha256=sha256, size=0), "not in the store")
    return join_chunks(BlobRef(sha256=sha256, size=size), pieces)
