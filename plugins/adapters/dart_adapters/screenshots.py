"""Screenshots of adapters: base64, data URLs, or rows of RGB pixels in JSON.

Rows of pixels are taken out of their answer and read one by one: a Python object for each number of a phone's screen
takes a hundred times its bytes, and its decoding would keep the interpreter from other episodes.
"""

import base64
import io
import json
import re
from typing import Annotated, Any

import msgspec
from PIL import Image

from dart_streams.config.text import MALFORMED, raise_if_dense
from workers.env.environment import EnvironmentFault

MODES = {3: "RGB", 4: "RGBA"}
"""Channels of a pixel; the fourth is left out."""
NUMBERS = msgspec.json.Decoder(list[Annotated[int, msgspec.Meta(ge=0, le=255)]])
ROWS_END = re.compile(rb"\]\s*\]\s*\]")


def decode_answer(body: bytes, screenshot: str) -> tuple[Any, bytes | None]:
    """Decode JSON whose field ``screenshot`` may have rows of pixels.

    Returns the value, which has null in their place, and the PNG file of the pixels, None without them. Raises
    EnvironmentFault for rows that are no image, and what decoding raises for other JSON that is malformed.
    """
    rest, image = take_rows(body, screenshot)
    raise_if_dense(rest)
    return json.loads(rest), image


def take_rows(body: bytes, name: str) -> tuple[bytes, bytes | None]:
    """Return a JSON text with null for the rows of pixels of field ``name``, and their PNG file, None without them."""
    field = re.escape(json.dumps(name).encode())
    found = re.search(rb"(?<!\\)" + field + rb"\s*:\s*(?=\[\s*\[\s*\[)", body)
    if found is None:
        return body, None
    begin, end = found.end(), body.find(b"]]]", found.end()) + len(b"]]]")
    if end < begin:
        spaced = ROWS_END.search(body, begin)
        end = spaced.end() if spaced else len(body)
    return body[:begin] + b"null" + body[end:], encode_rows(body[begin:end])


def encode_rows(text: bytes) -> bytes:
    """Return the PNG file of an image, given as JSON of rows of pixels; raise EnvironmentFault for anything else."""
    rows = text.translate(None, b" \t\r\n")[len(b"[[[") : -len(b"]]]")].split(b"]],[[")
    width, channels = rows[0].count(b"[") + 1, rows[0].partition(b"]")[0].count(b",") + 1
    raw = bytearray()
    try:
        for row in rows:
            numbers = NUMBERS.decode(b"[" + row.replace(b"],[", b",") + b"]")
            if len(numbers) != width * channels:
                raise ValueError(f"a row has {len(numbers)} numbers, and the first has {width * channels}")
            raw += bytes(numbers)
        image = Image.frombytes(MODES[channels], (width, len(rows)), bytes(raw)).convert("RGB")
    except (KeyError, ValueError, *MALFORMED) as error:
        raise EnvironmentFault(f"the screenshot has no rows of RGB pixels: {error}") from None
    image.save(buffer := io.BytesIO(), "PNG", compress_level=1)
    return buffer.getvalue()


def decode_file(value: Any) -> bytes:
    """Return the file of an image, given as base64 or data URL; raise EnvironmentFault for any other value."""
    if not isinstance(value, str):
        raise EnvironmentFault("the screenshot is neither base64 nor rows of pixels")
    try:
        return base64.b64decode(value.partition("base64,")[2] or value, validate=True)
    except ValueError as error:  # Also for a text that is not ASCII.
        raise EnvironmentFault(f"the screenshot is no base64: {error}") from None
