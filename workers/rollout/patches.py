"""Screenshots as the model's input: patches, computed once an image, by the same code as in training."""

import asyncio
import io
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import torch
from PIL import Image

from dart_streams.policy.rendering import Renderer
from dart_streams.store import MissingBlob
from topics.values import BlobRef
from workers.rollout.engine import EngineFault

ReadBlob = Callable[[BlobRef], Awaitable[bytes]]
"""Reads a screenshot; raises :class:`~dart_streams.store.MissingBlob` if the store does not have it."""


class ImagePatches(msgspec.Struct, frozen=True):
    """One image: float32 ``pixels`` (patches, pixels a patch) and ``grid`` (3,), its (t, h, w) in patches."""

    pixels: torch.Tensor
    grid: torch.Tensor


def patches_of(renderer: Renderer, data: bytes) -> ImagePatches:
    """Return the patches of an encoded image."""
    with Image.open(io.BytesIO(data)) as image:
        pixels, grid = renderer.pixels([image.convert("RGB")])
    return ImagePatches(pixels, grid[0])


class PatchCache:
    """An LRU cache of patches by sha256, up to ``limit_bytes``: a screenshot is part of several steps' prompts."""

    def __init__(self, renderer: Renderer, read: ReadBlob, limit_bytes: int) -> None:
        self.renderer = renderer
        self.read = read
        self.limit_bytes = limit_bytes
        self.bytes = 0
        self._cache: OrderedDict[str, ImagePatches] = OrderedDict()

    async def get(self, refs: Sequence[BlobRef]) -> tuple[list[ImagePatches], float]:
        """Return the patches of each image, and how long reading the bytes took (milliseconds).

        Raises EngineFault if an image is not in the store, or is none.
        """
        missing = {ref.sha256: ref for ref in refs if ref.sha256 not in self._cache}
        found = {ref.sha256: self._cache[ref.sha256] for ref in refs if ref.sha256 not in missing}
        fetch_ms = 0.0
        if missing:
            started = time.perf_counter()
            try:
                blobs = await asyncio.gather(*map(self.read, missing.values()))
            except MissingBlob as error:
                raise EngineFault(str(error)) from None
            fetch_ms = (time.perf_counter() - started) * 1000
            found |= await asyncio.to_thread(
                lambda: {ref.sha256: self._make(ref, data) for ref, data in zip(missing.values(), blobs, strict=True)}
            )
        for sha256, patches in found.items():
            self._store(sha256, patches)
        return [found[ref.sha256] for ref in refs], fetch_ms

    def _make(self, ref: BlobRef, data: bytes) -> ImagePatches:
        try:
            return patches_of(self.renderer, data)
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            raise EngineFault(f"blob {ref.sha256[:12]}… is no usable image: {error}") from None

    def _store(self, sha256: str, patches: ImagePatches) -> None:
        if sha256 not in self._cache:
            self._cache[sha256] = patches
            self.bytes += patches.pixels.nbytes
        self._cache.move_to_end(sha256)
        while self.bytes > self.limit_bytes and len(self._cache) > 1:
            _, oldest = self._cache.popitem(last=False)
            self.bytes -= oldest.pixels.nbytes
