"""Screenshots as the model takes them: patches, made once an image, by the same code as in training."""

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

Read = Callable[[BlobRef], Awaitable[bytes]]
"""How a screenshot's bytes are had; raises :class:`~dart_streams.store.MissingBlob` if there are none."""


class Patches(msgspec.Struct, frozen=True):
    """One image: float32 ``pixels`` (patches, pixels a patch) and ``grid`` (3,), its (t, h, w) in patches."""

    pixels: torch.Tensor
    grid: torch.Tensor


class PatchCache:
    """Patches by sha256, at most ``limit_bytes``: a screenshot is shown again in the prompts of the next steps."""

    def __init__(self, renderer: Renderer, read: Read, limit_bytes: int) -> None:
        self.renderer = renderer
        self.read = read
        self.limit_bytes = limit_bytes
        self.bytes = 0
        self._kept: OrderedDict[str, Patches] = OrderedDict()

    async def of(self, refs: Sequence[BlobRef]) -> tuple[list[Patches], float]:
        """Return the patches of each image, and how long reading the bytes took (milliseconds).

        Raises
        ------
        EngineFault
            If an image is not in the store, or is none.
        """
        missing = {ref.sha256: ref for ref in refs if ref.sha256 not in self._kept}
        had = {ref.sha256: self._kept[ref.sha256] for ref in refs if ref.sha256 not in missing}
        fetch_ms = 0.0
        if missing:
            started = time.perf_counter()
            try:
                blobs = await asyncio.gather(*map(self.read, missing.values()))
            except MissingBlob as error:
                raise EngineFault(str(error)) from None
            fetch_ms = (time.perf_counter() - started) * 1000
            had |= await asyncio.to_thread(self._make_all, dict(zip(missing.values(), blobs, strict=True)))
        for sha256, patches in had.items():
            self._keep(sha256, patches)
        return [had[ref.sha256] for ref in refs], fetch_ms

    def _make_all(self, blobs: dict[BlobRef, bytes]) -> dict[str, Patches]:
        return {ref.sha256: self._make(ref, data) for ref, data in blobs.items()}

    def _make(self, ref: BlobRef, data: bytes) -> Patches:
        try:
            with Image.open(io.BytesIO(data)) as image:
                pixels, grid = self.renderer.pixels([image.convert("RGB")])
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            raise EngineFault(f"blob {ref.sha256[:12]}… is no usable image: {error}") from None
        return Patches(pixels, grid[0])

    def _keep(self, sha256: str, patches: Patches) -> None:
        if sha256 not in self._kept:
            self._kept[sha256] = patches
            self.bytes += patches.pixels.nbytes
        self._kept.move_to_end(sha256)
        while self.bytes > self.limit_bytes and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self.bytes -= oldest.pixels.nbytes
