"""Cache of encoded screenshots."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from opentelemetry import metrics

from dart_streams.store import MissingBlob
from dart_streams.telemetry import names
from dart_streams.telemetry.instruments import ObservedCounter
from topics.values import BlobRef
from workers.rollout.engine import EngineFault

prepared = ObservedCounter(metrics.get_meter(names.METER), names.ROLLOUT_SCREENSHOTS)

ReadBlob = Callable[[BlobRef], Awaitable[bytes]]
"""Reads a screenshot; raises :class:`~dart_streams.store.MissingBlob`."""


class EncodedImage(msgspec.Struct, frozen=True):
    """An image of ``size`` bytes: its prompt ``tokens``, vLLM's ``PlaceholderRange`` and ``MultiModalKwargsItem``."""

    tokens: list[int]
    item: Any
    place: Any
    size: int


Encode = Callable[[bytes], EncodedImage]


class ImageCache:
    """LRU cache of encoded images by sha256, up to ``limit_bytes``."""

    def __init__(self, encode: Encode, read: ReadBlob, limit_bytes: int) -> None:
        self.encode = encode
        self.read = read
        self.limit_bytes = limit_bytes
        self.bytes = 0
        self._cache: OrderedDict[str, EncodedImage] = OrderedDict()

    async def get(self, refs: Sequence[BlobRef]) -> tuple[list[EncodedImage], float]:
        """Return the images and the read time (ms); raise EngineFault for a missing or unusable image."""
        missing = {ref.sha256: ref for ref in refs if ref.sha256 not in self._cache}
        images = {ref.sha256: self._cache[ref.sha256] for ref in refs if ref.sha256 not in missing}
        fetch_ms = 0.0
        if missing:
            started = time.perf_counter()
            try:
                blobs = await asyncio.gather(*map(self.read, missing.values()))
            except MissingBlob as error:
                raise EngineFault(str(error)) from None
            fetch_ms = (time.perf_counter() - started) * 1000
            images |= await asyncio.to_thread(
                lambda: {ref.sha256: self._make(ref, data) for ref, data in zip(missing.values(), blobs, strict=True)}
            )
        for sha256, image in images.items():
            self._store(sha256, image)
        return [images[ref.sha256] for ref in refs], fetch_ms

    def _make(self, ref: BlobRef, data: bytes) -> EncodedImage:
        try:
            return self.encode(data)
        except Exception as error:
            raise EngineFault(f"blob {ref.sha256[:12]}… is not a usable image: {error}") from error

    def _store(self, sha256: str, image: EncodedImage) -> None:
        if sha256 not in self._cache:
            self._cache[sha256] = image
            self.bytes += image.size
            prepared.add(1)
        self._cache.move_to_end(sha256)
        while self.bytes > self.limit_bytes and len(self._cache) > 1:
            _, oldest = self._cache.popitem(last=False)
            self.bytes -= oldest.size
