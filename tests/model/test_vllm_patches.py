"""Screenshots become patches once, however often they are shown."""

import asyncio
import hashlib
import io
from collections import Counter
from pathlib import Path

import pytest
import torch
from PIL import Image

from dart_streams.policy import tiny
from dart_streams.policy.rendering import Renderer
from topics.values import BlobRef
from workers.rollout.patches import PatchCache

ONE = 192 * 1176 * 4
"""Bytes of the patches of a screen of 160x210."""


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    folder: Path = tmp_path_factory.mktemp("policy") / "tiny"
    tiny.build(folder)
    return Renderer(folder, 3136, 1_003_520)


class Screens:
    """Screens of one colour each, and how often each was read."""

    def __init__(self, count: int) -> None:
        self.blobs: dict[str, bytes] = {}
        self.read = Counter[str]()
        self.refs = [self.store(number) for number in range(count)]

    def store(self, number: int) -> BlobRef:
        stream = io.BytesIO()
        Image.new("RGB", (160, 210), (number, 0, 0)).save(stream, "PNG")
        data = stream.getvalue()
        ref = BlobRef(sha256=hashlib.sha256(data).hexdigest(), size=len(data))
        self.blobs[ref.sha256] = data
        return ref

    async def get(self, ref: BlobRef) -> bytes:
        self.read[ref.sha256] += 1
        return self.blobs[ref.sha256]


async def test_an_image_shown_again_is_neither_read_nor_cut_again(renderer):
    screens = Screens(2)
    cache = PatchCache(renderer, screens.get, 10 * ONE)
    one, other = screens.refs
    first, _ = await cache.get([one])
    again, fetch_ms = await cache.get([other, one, one])
    assert again[1] is again[2] is first[0]
    assert fetch_ms > 0
    assert set(screens.read.values()) == {1}


async def test_patches_are_those_of_training(renderer):
    screens = Screens(1)
    [patches], _ = await PatchCache(renderer, screens.get, ONE).get(screens.refs)
    pixels, grid = renderer.pixels([Image.open(io.BytesIO(screens.blobs[screens.refs[0].sha256])).convert("RGB")])
    assert torch.equal(patches.pixels, pixels)
    assert torch.equal(patches.grid, grid[0])


async def test_those_shown_longest_ago_make_room(renderer):
    screens = Screens(3)
    cache = PatchCache(renderer, screens.get, 2 * ONE)
    a, b, c = screens.refs
    for ref in (a, b, a, c, a):
        await cache.get([ref])
    assert (screens.read[a.sha256], screens.read[c.sha256]) == (1, 1)
    assert cache.bytes == 2 * ONE
    await cache.get([b])
    assert screens.read[b.sha256] == 2


async def test_a_prompt_larger_than_the_cache_is_still_whole(renderer):
    screens = Screens(5)
    cache = PatchCache(renderer, screens.get, 1)
    patches, _ = await cache.get(screens.refs)
    assert len({float(one.pixels[0, 0]) for one in patches}) == 5
    many = await asyncio.gather(*(cache.get(screens.refs[:2]) for _ in range(8)))
    assert all(torch.equal(made[0].pixels, patches[0].pixels) for made, _ in many)
