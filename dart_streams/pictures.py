"""Encoded pictures: what may be a screenshot, and the one way in which rollout workers and the trainer decode it."""

import io
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from PIL import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""Others are not opened: Pillow would start a program for some of them."""
LEAST_SIDE = 4
"""Pixels. Image processors take a side of 1 or 3 for the color channels."""
MAX_ASPECT = 200
"""The longer side over the shorter one, as Qwen's image processor has it."""
MAX_PIXELS = 2**25
"""Those of 8K: 100 MB when decoded, however few bytes the file has."""
MODES = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA"})
"""Modes of 8 bits or fewer that have a meaning on a screen."""
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
"""What Pillow raises for bytes that are no picture, or no whole one."""


class UnusablePicture(ValueError):
    """A picture that is no screenshot; the text says why."""


class PictureFacts(NamedTuple):
    """What a picture's header says; sides in pixels."""

    media_type: str
    width: int
    height: int


def decode_picture(data: bytes) -> Image.Image:
    """Return a picture in RGB; raise :class:`UnusablePicture` if it is broken, or of a size that no model takes."""
    with open_picture(data) as image:
        return image.convert("RGB")


def size_of(data: bytes) -> tuple[int, int]:
    """Return a picture's (width, height); only its header is read. Raises as :func:`decode_picture` does."""
    with open_picture(data) as image:
        return image.size


def facts_of(data: bytes) -> PictureFacts:
    """Return what the header of a screenshot says; raise :class:`UnusablePicture` if it says that it is none.

    None is a picture that moves, is to be turned, has other colors than a screen's, or more than 8 bits of each.
    """
    with open_picture(data) as image:
        refuse_unlike_a_screen(image)
        return PictureFacts(Image.MIME[str(image.format)], *image.size)


def check_picture(data: bytes) -> PictureFacts:
    """Return the same of a picture that is whole, and has no transparent pixel; raises as :func:`facts_of` does."""
    with open_picture(data) as image:
        refuse_unlike_a_screen(image)
        if image.has_transparency_data and (lowest := min(image.convert("RGBA").getchannel("A").tobytes())) < 255:
            raise UnusablePicture(f"it has transparent pixels (alpha {lowest}): put it on a background")
        image.load()
        return PictureFacts(Image.MIME[str(image.format)], *image.size)


@contextmanager
def open_picture(data: bytes) -> Iterator[Image.Image]:
    """Open a picture of a usable size; whatever Pillow raises in the block is :class:`UnusablePicture`."""
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
    """Raise :class:`UnusablePicture` for what people, browsers and models see differently."""
    if getattr(image, "is_animated", False):
        raise UnusablePicture("it is animated: save one frame of it")
    if image.mode not in MODES:
        raise UnusablePicture(f"it is of mode {image.mode}: save it in RGB, with 8 bits of each color")
    # Of a PNG without it Pillow would decode all to look for it at the end.
    if (image.format != "PNG" or "exif" in image.info) and image.getexif().get(ORIENTATION, 1) != 1:
        raise UnusablePicture("its EXIF data say that it is to be turned: save it as it is to be seen")
