"""What the adapters' tables of options and their screens have in common."""

import base64
import io
import math
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from PIL import Image

from dart_streams.config import Config
from dart_streams.errors import ConfigError
from workers.env.environment import EnvironmentFault
from workers.env.returned_values import describe_value

T = TypeVar("T")


def convert_options(config: Config, kind: type[T]) -> T:
    """Return ``env.installed.options`` as a ``kind``; raise ConfigError that names the key that is wrong."""
    try:
        return msgspec.convert(config.env.installed.options, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"env.installed.options of {config.env.backend}: {error}") from None


def encode_image(found: Any) -> bytes:
    """Return an image as bytes of a file: base64 of one, a data URL, or nested lists of RGB pixels.

    Raises EnvironmentFault if it is none of them.
    """
    if isinstance(found, str):
        try:
            return base64.b64decode(found.partition("base64,")[2] or found, validate=True)
        except ValueError as error:  # also of a text that is not ASCII
            raise EnvironmentFault(f"the screenshot is no base64: {error}") from None
    try:
        height, width = len(found), len(found[0])
        raw = bytes(channel for row in found for pixel in row for channel in pixel[:3])
        buffer = io.BytesIO()
        Image.frombytes("RGB", (width, height), raw).save(buffer, "PNG", compress_level=1)
    except (TypeError, ValueError, IndexError, KeyError) as error:
        raise EnvironmentFault(f"the screenshot is neither base64 nor rows of pixels: {error}") from None
    return buffer.getvalue()


def field_of(fields: Mapping[str, Any], path: str) -> Any:
    """Return the value at a path of names with dots between them; None if there is none."""
    found: Any = fields
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def number_of(answer: Mapping[str, Any], path: str) -> float:
    """Return the finite number at a path of an answer, 0 if there is none; raise EnvironmentFault for anything else."""
    found = field_of(answer, path)
    if found is None:
        return 0.0
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        raise EnvironmentFault(f"{path} is {describe_value(found)}: it is a number")
    return float(found)


def flag_of(answer: Mapping[str, Any], path: str) -> bool:
    """Return the truth value at a path of an answer, False if there is none; raise EnvironmentFault for any other."""
    found = field_of(answer, path)
    if not isinstance(found, bool | None):
        raise EnvironmentFault(f"{path} is {describe_value(found)}: it is true or false")
    return bool(found)


def text_of(answer: Mapping[str, Any], path: str) -> str:
    """Return the text at a path of an answer, empty if there is none; raise EnvironmentFault for anything else."""
    found = field_of(answer, path)
    if not isinstance(found, str | None):
        raise EnvironmentFault(f"{path} is {describe_value(found)}: it is a text")
    return found or ""


def clamp_reward(reward: float) -> float:
    """Return a sum of finite rewards within [0, 1]; raise EnvironmentFault if it is not finite itself."""
    if not math.isfinite(reward):
        raise EnvironmentFault(f"the rewards of the episode add up to {reward}")
    return min(max(reward, 0.0), 1.0)
