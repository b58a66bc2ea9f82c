"""Pictures as files have them: a screenshot is one that people, browsers and models see alike, and that is whole."""

import functools
import io
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dart_streams import pictures
from dart_streams.pictures import UnusablePicture


def saved(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def noise(mode: str = "RGB", size: tuple[int, int] = (40, 30)) -> Image.Image:
    return Image.effect_noise(size, 80).convert(mode)


def turned() -> bytes:
    exif = Image.Exif()
    exif[pictures.ORIENTATION] = 6
    return saved(noise(), "JPEG", exif=exif)


def bomb(width: int, height: int) -> bytes:
    """Return a PNG of a few kilobytes that would be decoded to ``width * height`` pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")


def transparent(mode: str) -> bytes:
    image = Image.new("RGBA", (40, 30), (255, 0, 0, 100))
    return saved(image.convert("P") if mode == "P" else image, **({"transparency": 0} if mode == "P" else {}))


USABLE = {
    "RGB": saved(noise()),
    "gray": saved(noise("L")),
    "black and white": saved(noise("1")),
    "a palette": saved(noise("P")),
    "an alpha channel that hides nothing": saved(noise("RGBA")),
    "JPEG": saved(noise(), "JPEG"),
    "WebP": saved(noise(), "WEBP"),
    "one frame of a GIF": saved(noise("P"), "GIF"),
    "a bitmap": saved(noise(), "BMP"),
}
UNLIKE_A_SCREEN = {
    "animated": (saved(noise("P"), "GIF", save_all=True, append_images=[Image.new("P", (40, 30))]), "animated"),
    "an animated PNG": (saved(noise(), save_all=True, append_images=[noise()]), "animated"),
    "CMYK": (saved(noise("CMYK"), "JPEG"), "mode CMYK"),
    "16 bit": (saved(Image.new("I;16", (40, 30), 30000)), "mode I;16"),
    "to be turned": (turned(), "EXIF"),
    "a transparent palette": (transparent("P"), "transparent pixels"),
    "transparent pixels": (transparent("RGBA"), r"transparent pixels \(alpha 100\)"),
}
NONE_AT_ALL = {
    "nothing": (b"", "can't be read"),
    "text": (b"<svg/>", "can't be read"),
    "truncated PNG": (USABLE["RGB"][:-400], "can't be read"),
    "truncated JPEG": (USABLE["JPEG"][:-200], "can't be read"),
    "too small": (saved(Image.new("RGB", (3, 300))), "3x300 pixels: a side has at least 4"),
    "of extreme sides": (saved(Image.new("RGB", (2010, 10))), "at most 200 times the other"),
    "a bomb": (bomb(8192, 8192), "at most 33554432 are decoded"),
    "a larger bomb": (bomb(12000, 12000), "can't be read|at most"),
    "the largest bomb": (bomb(2**31 - 1, 2**31 - 1), "can't be read"),
    "a program": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 40 30\n", "can't be read"),
}


@pytest.mark.parametrize("data", USABLE.values(), ids=USABLE)
def test_a_screenshot_is_taken_and_decoded(data: bytes):
    facts = pictures.check_picture(data)
    assert facts == pictures.facts_of(data)
    assert (facts.width, facts.height) == pictures.size_of(data) == pictures.decode_picture(data).size == (40, 30)
    assert facts.media_type.startswith("image/")


@pytest.mark.parametrize("data, reason", UNLIKE_A_SCREEN.values(), ids=UNLIKE_A_SCREEN)
def test_what_models_see_as_people_do_not_is_refused_at_an_import(data: bytes, reason: str):
    with pytest.raises(UnusablePicture, match=reason):
        pictures.check_picture(data)
    assert pictures.decode_picture(data).mode == "RGB", "what was recorded before is decoded the same everywhere"


@pytest.mark.parametrize("data, reason", NONE_AT_ALL.values(), ids=NONE_AT_ALL)
def test_what_no_model_takes_is_refused_everywhere(data: bytes, reason: str):
    compress = functools.partial(pictures.compress_picture, kind="webp", quality=80, size=(40, 30))
    for take in (pictures.check_picture, pictures.decode_picture, compress):
        with pytest.raises(UnusablePicture, match=reason):
            take(data)


@given(st.sampled_from(sorted(USABLE)), st.data())
def test_whatever_is_wrong_with_the_bytes_is_one_kind_of_error(kind: str, draw: st.DataObject):
    data = bytearray(USABLE[kind])
    for place in draw.draw(st.lists(st.integers(0, len(data) - 1), min_size=1, max_size=6)):
        data[place] = draw.draw(st.integers(0, 255))
    cut = bytes(data[: draw.draw(st.integers(0, len(data)))])
    for take in (pictures.check_picture, pictures.decode_picture, pictures.facts_of, pictures.size_of):
        try:
            take(cut)
        except UnusablePicture as error:
            assert str(error)


@pytest.mark.parametrize("kind", ["webp", "jpeg"])
def test_a_larger_picture_is_scaled_down_and_a_smaller_one_is_kept(kind: str):
    data = saved(noise(size=(80, 60)))
    for size, wanted in (((40, 28), (40, 28)), ((84, 56), (84, 56)), ((80, 60), (80, 60)), ((112, 84), (80, 60))):
        made = pictures.compress_picture(data, kind, 80, size)
        assert pictures.facts_of(made) == (f"image/{kind}", *wanted)
        pictures.check_picture(made)


@pytest.mark.parametrize("kind", ["webp", "jpeg"])
def test_equal_pictures_compress_to_equal_bytes_by_their_quality(kind: str):
    image = noise(size=(160, 210))
    first, again = saved(image), saved(image, compress_level=1)
    assert first != again
    sizes = []
    for quality in (90, 50, 10):
        made = pictures.compress_picture(first, kind, quality, (160, 210))
        assert made == pictures.compress_picture(again, kind, quality, (160, 210))
        sizes.append(len(made))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1]


def test_a_thin_colored_line_keeps_its_color_in_a_jpeg():
    image = Image.new("RGB", (64, 64), "white")
    image.paste((255, 0, 0), (0, 31, 64, 32))
    made = pictures.decode_picture(pictures.compress_picture(saved(image), "jpeg", 80, image.size))
    red, green, blue = made.getpixel((32, 31))
    assert red - max(green, blue) > 200
