"""Screenshots become the model's input once, however often they are shown."""

import asyncio
import hashlib
import io
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from dart_streams.config import Config
from dart_streams.policy.probe import ParityFault
from dart_streams.policy.rendering import Prompt, Renderer
from tests.model.families import FAMILIES
from topics.values import BlobRef
from workers.rollout import vllm_settings
from workers.rollout.engine import EngineFault
from workers.rollout.images import EncodedImage, ImageCache

BOUND_S = 60.0
ONE = 1000
"""Bytes of an image as :func:`encode` says."""


class Screens:
    """Screens of one color each, and how often each was read."""

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


def encode(data: bytes) -> EncodedImage:
    return EncodedImage(tokens=[1], item=data, place=None, size=ONE)


async def test_an_image_shown_again_is_neither_read_nor_encoded_again():
    screens = Screens(2)
    cache = ImageCache(encode, screens.get, 10 * ONE)
    one, other = screens.refs
    first, _ = await cache.get([one])
    again, fetch_ms = await cache.get([other, one, one])
    assert again[1] is again[2] is first[0]
    assert fetch_ms > 0
    assert set(screens.read.values()) == {1}


async def test_those_shown_longest_ago_make_room():
    screens = Screens(3)
    cache = ImageCache(encode, screens.get, 2 * ONE)
    a, b, c = screens.refs
    for ref in (a, b, a, c, a):
        await cache.get([ref])
    assert (screens.read[a.sha256], screens.read[c.sha256]) == (1, 1)
    assert cache.bytes == 2 * ONE
    await cache.get([b])
    assert screens.read[b.sha256] == 2


async def test_an_image_that_many_show_at_once_is_made_once_for_all():
    screens, encoded, begun, go_on = Screens(2), Counter[bytes](), threading.Event(), threading.Event()

    def encode_slowly(data: bytes) -> EncodedImage:
        encoded[data] += 1
        begun.set()
        assert go_on.wait(BOUND_S)
        return encode(data)

    cache = ImageCache(encode_slowly, screens.get, 10 * ONE)
    asking = [asyncio.ensure_future(cache.get(screens.refs[: 1 + number % 2])) for number in range(8)]
    assert await asyncio.to_thread(begun.wait, BOUND_S)
    asking.pop(0).cancel()
    go_on.set()
    made = await asyncio.gather(*asking)
    assert len({id(images[0]) for images, _ in made}) == 1
    assert set(encoded.values()) == set(screens.read.values()) == {1}
    assert cache.bytes == 2 * ONE


async def test_a_failure_is_that_of_all_who_wait_and_is_not_kept():
    screens, broken = Screens(1), [ParityFault("other tokens")]

    def encode_later(data: bytes) -> EncodedImage:
        if broken:
            raise broken[0]
        return encode(data)

    cache = ImageCache(encode_later, screens.get, 10 * ONE)
    for answer in await asyncio.gather(*(cache.get(screens.refs) for _ in range(3)), return_exceptions=True):
        assert isinstance(answer, EngineFault) and "other tokens" in str(answer)
    broken.clear()
    assert (await cache.get(screens.refs))[0][0].size == ONE


async def test_a_prompt_larger_than_the_cache_is_still_whole():
    screens = Screens(5)
    cache = ImageCache(encode, screens.get, 1)
    images, _ = await cache.get(screens.refs)
    assert len({one.item for one in images}) == 5
    many = await asyncio.gather(*(cache.get(screens.refs[:2]) for _ in range(8)))
    assert all(made[0].item == images[0].item for made, _ in many)


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Renderer, Any]:
    from vllm import EngineArgs

    from workers.rollout.vllm_images import ImageEncoder

    folder: Path = tmp_path_factory.mktemp("policy") / request.param
    FAMILIES[request.param](folder)
    renderer = Renderer(folder, 3136, 20_000)
    arguments = vllm_settings.engine_arguments(Config(), folder, False, 0)
    return renderer, ImageEncoder(EngineArgs(**arguments).create_model_config(), renderer)


@pytest.mark.parametrize("size", [(160, 210), (640, 480), (30, 40)])
def test_vllm_is_given_the_pixels_and_the_tokens_of_training(model, size):
    renderer, encoder = model
    image = Image.effect_noise(size, 80).convert("RGB")
    stream = io.BytesIO()
    image.save(stream, "PNG")
    encoded = encoder(stream.getvalue())
    assert encoded.tokens == renderer.expansion(*size)
    assert encoded.size > 0
    wanted = renderer.pixels([image])
    given = {name: element.data for name, element in encoded.item.items() if name in wanted}
    assert given.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(given[name].reshape(-1), value.reshape(-1)), name
    mask = encoded.place.is_embed
    embedded = encoded.place.length if mask is None else int(mask.sum())
    assert embedded == encoded.tokens.count(renderer.image_token)


def test_a_prompt_has_the_tokens_of_each_image_in_its_place(model):
    from workers.rollout import vllm_images

    renderer, encoder = model
    screens = Screens(2)
    images = [encoder(screens.blobs[ref.sha256]) for ref in screens.refs]
    prompt = Prompt(token_ids=[7, renderer.placeholder, 8, 9, renderer.placeholder], images=screens.refs, sha="")
    made: Any = vllm_images.prompt_inputs(prompt, images, renderer.placeholder)
    assert made["prompt_token_ids"] == renderer.expanded(prompt.token_ids, [(160, 210)] * 2)
    length = len(images[0].tokens)
    offsets = [place.offset for place in made["mm_placeholders"]["image"]]
    assert offsets == [1 + images[0].place.offset, 3 + length + images[1].place.offset]
    assert made["mm_hashes"]["image"] == [ref.sha256 for ref in screens.refs]


def test_an_image_of_which_the_two_libraries_make_other_tokens_is_refused(model, monkeypatch):
    renderer, encoder = model
    screens = Screens(1)
    monkeypatch.setattr(renderer, "expansion", lambda *_: [renderer.image_token])
    with pytest.raises(ParityFault, match="image processors of vLLM and transformers disagree"):
        encoder(screens.blobs[screens.refs[0].sha256])
