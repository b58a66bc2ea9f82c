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

THREADS = 4
"""Pictures encoded at a time: the process's threads fetch weights too."""

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
    """LRU cache of encoded images by sha256, up to ``limit_bytes``. Requests for one under way wait for it."""

    def __init__(self, encode: Encode, read: ReadBlob, limit_bytes: int) -> None:
        self.encode = encode
        self.read = read
        self.limit_bytes = limit_bytes
        self.bytes = 0
        self._cache: OrderedDict[str, EncodedImage] = OrderedDict()
        self._under_way: dict[str, asyncio.Task[tuple[EncodedImage, float]]] = {}
        self._threads = asyncio.Semaphore(THREADS)

    async def get(self, refs: Sequence[BlobRef]) -> tuple[list[EncodedImage], float]:
        """Return the images and the read time (ms); raise EngineFault for a missing or unusable image."""
        started = time.perf_counter()
        wanted = {ref.sha256: ref for ref in refs}
        images = {sha256: self._cache[sha256] for sha256 in wanted if sha256 in self._cache}
        for sha256 in images:
            self._cache.move_to_end(sha256)
        missing = {sha256: self._begun(ref) for sha256, ref in wanted.items() if sha256 not in images}
        made = await asyncio.gather(*map(asyncio.shield, missing.values()))
        images |= {sha256: image for sha256, (image, _) in zip(missing, made, strict=True)}
        read_ms = max((fetch_ms for _, fetch_ms in made), default=0.0)
        return [images[ref.sha256] for ref in refs], min(read_ms, (time.perf_counter() - started) * 1000)

    def _begun(self, ref: BlobRef) -> asyncio.Task[tuple[EncodedImage, float]]:
        """Return the task that reads and encodes an image, which ends even if no request waits for it any more."""
        if ref.sha256 not in self._under_way:
            task = self._under_way[ref.sha256] = asyncio.create_task(self._make(ref))
            task.add_done_callback(lambda _: self._under_way.pop(ref.sha256))
        return self._under_way[ref.sha256]

    async def _make(self, ref: BlobRef) -> tuple[EncodedImage, float]:
        """Return an image, kept, and the time of its read (ms)."""
        started = time.perf_counter()
        try:
            data = await self.read(ref)
        except MissingBlob as error:
            raise EngineFault(str(error)) from None
        fetch_ms = (time.perf_counter() - started) * 1000
        async with self._threads:
            try:
                image = await asyncio.to_thread(self.encode, data)
            except Exception as error:
                raise EngineFault(f"blob {ref.sha256[:12]}… is not a usable image: {error}") from error
        self._keep(ref.sha256, image)
        return image, fetch_ms

    def _keep(self, sha256: str, image: EncodedImage) -> None:
        self._cache[sha256] = image
        self.bytes += image.size
        prepared.add(1)
        while self.bytes > self.limit_bytes and len(self._cache) > 1:
            _, oldest = self._cache.popitem(last=False)
            self.bytes -= oldest.size
