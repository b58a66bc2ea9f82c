"""The text of files with any line ends and an optional byte order mark."""

import codecs
from typing import TypeVar

import msgspec

from dart_streams.errors import ConfigError

MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding bytes raises: for another form, no UTF-8, or too deep a nesting. msgspec declares the first alone."""

MOST_VALUES = 500_000

T = TypeVar("T")

OTHER_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
"""Byte order marks of other encodings, the longer ones first."""


def raise_if_dense(text: bytes) -> None:
    """Raise DecodeError for JSON of more than :data:`MOST_VALUES` values: each of two bytes takes 70 when decoded."""
    if sum(map(text.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise msgspec.DecodeError(f"JSON has more than {MOST_VALUES} values")


def text_of(content: bytes, source: str, first_line: int = 1) -> str:
    """Return the text of UTF-8 bytes that begin at ``first_line``, with line feeds and without a byte order mark.

    Raises :class:`ConfigError` with advice if ``source`` is in another encoding or has NUL bytes.
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


def lines_of(text: str) -> list[str]:
    """Return the lines of a text, which end at line feeds: ``splitlines`` cuts inside a value, as at U+2028."""
    return text.removesuffix("\n").split("\n")


def with_nul_bytes(content: bytes, source: str, first_line: int) -> str:
    """Return the error of a file with NUL bytes, from a crash or another encoding."""
    text = content.rstrip(b"\0")
    if b"\0" not in text:
        count = len(content) - len(text)
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
    """Decode a JSON file as a ``kind``; raise :class:`ConfigError` with ``source`` if that fails."""
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
