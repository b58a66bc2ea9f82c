"""Encoded pictures: the check of screenshots, their compression, and their decoding for the model."""

import io
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from PIL import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""Accepted formats; Pillow would start a program for some others."""
LEAST_SIDE = 4
"""Pixels. Image processors take a side of 1 or 3 for the color channels."""
MAX_ASPECT = 200
"""The longer side over the shorter one, as in Qwen's image processor."""
MAX_PIXELS = 2**25
"""An 8K screen, 100 MB when decoded."""
MODES = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA"})
"""Modes of at most 8 bits that a screen has."""
ORIENTATION = 0x0112
BROKEN = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    LookupError,
    TypeError,
    ArithmeticError,
    MemoryError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,
)
"""Pillow's errors for broken pictures."""


class UnusablePicture(ValueError):
    """A picture is no screenshot."""


class PictureFacts(NamedTuple):
    """Facts of a picture's header; sides in pixels."""

    media_type: str
    width: int
    height: int


def decode_picture(data: bytes) -> Image.Image:
    """Return a picture in RGB; raise :class:`UnusablePicture` if it is broken or has an unusable size."""
    with open_picture(data) as image:
        return image.convert("RGB")


def compress_picture(data: bytes, kind: str, quality: int, size: tuple[int, int]) -> bytes:
    """Return a picture as ``jpeg`` or ``webp``, scaled to ``size`` if it has more pixels; raise as above.

    Equal pictures give equal bytes. JPEG keeps its colors at full resolution: thin colored lines would fade otherwise.
    """
    image = decode_picture(data)
    if size[0] * size[1] < image.width * image.height:
        image = image.resize(size, Image.Resampling.BICUBIC)
    stream = io.BytesIO()
    image.save(stream, kind, quality=quality, **({"subsampling": 0} if kind == "jpeg" else {}))
    return stream.getvalue()


def size_of(data: bytes) -> tuple[int, int]:
    """Return (width, height) from a picture's header; raise as :func:`decode_picture` does."""
    with open_picture(data) as image:
        return image.size


def facts_of(data: bytes) -> PictureFacts:
    """Return the facts of a screenshot's header; raise :class:`UnusablePicture` if it is no screenshot.

    A screenshot is not animated or rotated, and has the colors of a screen with at most 8 bits each.
    """
    with open_picture(data) as image:
        refuse_unlike_a_screen(image)
        return PictureFacts(Image.MIME[str(image.format)], *image.size)


def check_picture(data: bytes) -> PictureFacts:
    """Return the facts of a complete, opaque screenshot; raise as :func:`facts_of` does."""
    with open_picture(data) as image:
        refuse_unlike_a_screen(image)
        if image.has_transparency_data and (lowest := min(image.convert("RGBA").getchannel("A").tobytes())) < 255:
            raise UnusablePicture(f"it has transparent pixels (alpha {lowest}): put it on a background")
        image.load()
        return PictureFacts(Image.MIME[str(image.format)], *image.size)


@contextmanager
def open_picture(data: bytes) -> Iterator[Image.Image]:
    """Open a picture of a usable size; Pillow's errors in the block become :class:`UnusablePicture`."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            refuse_size(*image.size)
            yield image
    except UnusablePicture:
        raise
    except BROKEN as error:
        raise UnusablePicture(f"it can't be read: {str(error) or type(error).__name__}") from None


def refuse_size(width: int, height: int) -> None:
    """Raise :class:`UnusablePicture` if no model takes a picture of this size."""
    if min(width, height) < LEAST_SIDE:
        raise UnusablePicture(f"it has {width}x{height} pixels: a side has at least {LEAST_SIDE}")
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise UnusablePicture(f"it has {width}x{height} pixels: a side is at most {MAX_ASPECT} times the other")
    if width * height > MAX_PIXELS:
        raise UnusablePicture(f"it has {width}x{height} pixels: at most {MAX_PIXELS} are decoded")


def refuse_unlike_a_screen(image: Image.Image) -> None:
    """Raise :class:`UnusablePicture` if people, browsers and models would see the picture differently."""
    if getattr(image, "is_animated", False):
        raise UnusablePicture("it is animated: save one frame of it")
    if image.mode not in MODES:
        raise UnusablePicture(f"it is of mode {image.mode}: save it in RGB, with 8 bits of each color")
    # Pillow would decode a whole PNG to look for EXIF data at its end.
    if (image.format != "PNG" or "exif" in image.info) and image.getexif().get(ORIENTATION, 1) != 1:
        raise UnusablePicture("its EXIF data say that it is to be turned: save it as it is to be seen")
