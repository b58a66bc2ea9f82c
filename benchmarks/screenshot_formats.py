"""Bytes and encoding time of screenshots by format: ``dart-streams bench screenshots``.

Formats take turns on each picture, so that other work on the machine slows all of them alike.
"""

import io
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.learning import screens
from dart_streams.config.rollout import Policy
from dart_streams.errors import UserError
from dart_streams.pictures import compress_picture, decode_picture
from dart_streams.screens import smart_resize


class PictureFormat(NamedTuple):
    """A format of ``env.screenshots``; ``png`` is the baseline, which only this benchmark encodes."""

    kind: str
    quality: int


FORMATS = (
    PictureFormat("png", 0),
    *(PictureFormat(kind, quality) for kind in ("webp", "jpeg") for quality in (90, 80, 50, 30)),
)


class FormatCost(msgspec.Struct, frozen=True, kw_only=True):
    """Mean cost of a picture in a format; ratios are to the same pictures as PNG, in the same run."""

    format: str
    quality: int
    pictures: int
    kb: float
    bytes_to_png: float
    encode_ms: float
    time_to_png: float


def recorded_pictures(folder: Path) -> list[bytes]:
    """Return the screens of the newest recording of ``bench learning``; raise UserError without one."""
    found = sorted(folder.glob("screens-*.msgpack"), key=lambda file: file.stat().st_mtime)
    if not found:
        raise UserError(f"no recorded screens in {folder}: run `bench learning`, or name pictures")
    return list(screens.read(found[-1]).images.values())


def encode_picture(data: bytes, chosen: PictureFormat, policy: Policy) -> bytes:
    """Return a picture as a deployment would store it; ``png`` keeps its size."""
    image = decode_picture(data)
    if chosen.kind == "png":
        stream = io.BytesIO()
        image.save(stream, "png")
        return stream.getvalue()
    size = smart_resize(*image.size, policy.min_pixels, policy.max_pixels)
    return compress_picture(data, chosen.kind, chosen.quality, size)


def measure(pictures: Sequence[bytes], policy: Policy, rounds: int = 1) -> list[FormatCost]:
    """Return the cost of each format over ``pictures``."""
    size_of: dict[PictureFormat, int] = defaultdict(int)
    seconds: dict[PictureFormat, float] = defaultdict(float)
    for data in [*pictures] * rounds:
        for chosen in FORMATS:
            started = time.process_time()
            made = encode_picture(data, chosen, policy)
            seconds[chosen] += time.process_time() - started
            size_of[chosen] += len(made)
    count, png = len(pictures) * rounds, FORMATS[0]
    return [
        FormatCost(
            format=chosen.kind,
            quality=chosen.quality,
            pictures=len(pictures),
            kb=round(size_of[chosen] / count / 1000, 2),
            bytes_to_png=round(size_of[chosen] / size_of[png], 3),
            encode_ms=round(seconds[chosen] / count * 1000, 2),
            time_to_png=round(seconds[chosen] / seconds[png], 2),
        )
        for chosen in FORMATS
    ]
