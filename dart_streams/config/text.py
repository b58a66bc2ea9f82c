"""The text of files as people have them: any line ends, with or without a byte order mark, and an error that helps."""

import codecs
from typing import TypeVar

import msgspec

from dart_streams.errors import ConfigError

T = TypeVar("T")

OTHER_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
"""Byte order marks of other encodings; the longer ones begin with the shorter ones."""


def text_of(content: bytes, source: str, first_line: int = 1) -> str:
    """Return the text of a file in UTF-8, or of its lines from ``first_line`` on, with every line end as a line feed.

    A byte order mark of UTF-8 is left out. Raises :class:`ConfigError` that names ``source``, what it is, and the way
    out if it is in another encoding or has NUL bytes.
    """
    for mark, name in OTHER_MARKS:
        if content.startswith(mark):
            raise ConfigError(not_utf_8(source, f"is in {name}", name))
    if b"\0" in content:
        raise ConfigError(with_nul_bytes(content, source, first_line))
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + first_line
        found = f"has the byte 0x{content[error.start]:02x} in line {line}, which is no UTF-8 (Latin-1, perhaps)"
        raise ConfigError(not_utf_8(source, found, "LATIN1")) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def with_nul_bytes(content: bytes, source: str, first_line: int) -> str:
    """Return the error of a file with NUL bytes: one that was cut off by a crash, or is no UTF-8."""
    kept = content.rstrip(b"\0")
    if b"\0" not in kept:
        count = len(content) - len(kept)
        return f"{source} ends with {count} NUL bytes, as after a crash of its machine: write it anew"
    if content.count(b"\0") * 3 > len(content):
        name = "UTF-16LE" if content.find(b"\0") % 2 else "UTF-16BE"
        return not_utf_8(source, f"is in {name} without a byte order mark", name)
    line = content.count(b"\n", 0, content.index(b"\0")) + first_line
    return f"{source} has a NUL byte in line {line}: it is damaged, or no text; write it anew"


def not_utf_8(source: str, found: str, encoding: str) -> str:
    """Return the error of a file in another encoding, with the command that converts it."""
    return f"{source} {found}: save it as UTF-8, for instance by `iconv -f {encoding} -t UTF-8`"


def json_of(content: bytes, source: str, kind: type[T]) -> T:
    """Return what a JSON file holds, as a ``kind``; raise :class:`ConfigError` that names ``source`` if it does not."""
    text = text_of(content, source)
    if not text.strip():
        raise ConfigError(f"{source} is empty: write it anew")
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {error}") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{source} is not JSON: {error}") from None
    except RecursionError:
        raise ConfigError(f"{source} is not JSON of this kind: it is nested too deeply") from None
