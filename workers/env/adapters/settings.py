"""What the adapters' tables of options and their screens have in common."""

import base64
import binascii
import io
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from PIL import Image, UnidentifiedImageError

from dart_streams.config import Config
from dart_streams.errors import ConfigError
from workers.env.environment import EnvironmentFault, Screen

T = TypeVar("T")


def options(config: Config, kind: type[T]) -> T:
    """Return ``env.installed.options`` as a ``kind``; raise ConfigError that names the key that is wrong."""
    try:
        return msgspec.convert(config.env.installed.options, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"env.installed.options of {config.env.backend}: {error}") from None


def encoded(found: Any) -> bytes:
    """Return an image as bytes of a file: base64 of one, a data URL, or nested lists of RGB pixels.

    Raises EnvironmentFault if it is none of them.
    """
    if isinstance(found, str):
        try:
            return base64.b64decode(found.partition("base64,")[2] or found, validate=True)
        except binascii.Error as error:
            raise EnvironmentFault(f"the screenshot is no base64: {error}") from None
    try:
        height, width = len(found), len(found[0])
        raw = bytes(channel for row in found for pixel in row for channel in pixel[:3])
        image = Image.frombytes("RGB", (width, height), raw)
    except (TypeError, ValueError, IndexError, KeyError) as error:
        raise EnvironmentFault(f"the screenshot is neither base64 nor rows of pixels: {error}") from None
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def screen(image: bytes, instruction: str, done: bool) -> Screen:
    """Return an image as a screen; raise EnvironmentFault if it cannot be read."""
    try:
        with Image.open(io.BytesIO(image)) as found:
            size, kind = found.size, found.get_format_mimetype()
    except (UnidentifiedImageError, OSError, ValueError) as error:
        raise EnvironmentFault(f"the screen cannot be read: {error}") from None
    return Screen(image=image, media_type=str(kind), width=size[0], height=size[1], instruction=instruction, done=done)


def field_of(fields: Mapping[str, Any], path: str) -> Any:
    """Return the value at a path of names with dots between them; None if there is none."""
    found: Any = fields
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def bounded(reward: float) -> float:
    """Return a reward within [0, 1]."""
    return min(max(float(reward), 0.0), 1.0)
