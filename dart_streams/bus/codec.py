"""Encodes events as records and decodes them: the value is JSON, the ``schema`` header names event and version."""

import functools
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from topics import Topic

Header = tuple[str, bytes]

SCHEMA = "schema"
ID = "id"


class Undecodable(Exception):
    """A record that is not an event of its topic; the text says why. It belongs on the dead-letter topic."""


class Encoded(NamedTuple):
    """A record ready to send."""

    key: bytes
    value: bytes
    headers: list[Header]


_encoder = msgspec.json.Encoder()
_decoder = functools.cache(msgspec.json.Decoder)


def encode(topic: Topic, event: msgspec.Struct, headers: Iterable[Header] = (), record_id: str = "") -> Encoded:
    """Encode ``event`` for ``topic``; ``record_id`` becomes the ``id`` header (by default a new UUID)."""
    if not isinstance(event, topic.event):
        raise TypeError(f"{topic.name} carries {topic.event.__name__}, not {type(event).__name__}")
    own = [(SCHEMA, topic.schema.encode()), (ID, (record_id or uuid.uuid4().hex).encode())]
    return Encoded(topic.key_of(event).encode(), _encoder.encode(event), [*own, *headers])


def decode(topic: Topic, value: bytes | None, headers: Sequence[Header]) -> Any:
    """Decode the value of a record of ``topic``.

    A record without a schema header counts as of the topic's present version, so that one can be produced by hand.

    Raises :class:`Undecodable` if the value is empty, not JSON, lacks a field, or is of another or a newer schema.
    """
    if value is None:
        raise Undecodable("the record has no value")
    if (declared := header(headers, SCHEMA)) is not None:
        schema = declared.decode(errors="replace")
        name, _, version = schema.rpartition("/")
        if name != topic.name or not version.isdecimal() or len(version) > 9:
            raise Undecodable(f"schema {schema!r} is not of topic {topic.name!r}")
        if int(version) > topic.version:
            raise Undecodable(f"schema {schema!r} is newer than this program's {topic.schema!r}: upgrade it")
    try:
        return _decoder(topic.event).decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Undecodable(f"not a {topic.schema}: {error}") from None


def header(headers: Sequence[Header], name: str) -> bytes | None:
    """Return the value of the first header called ``name``, or None."""
    return next((value for key, value in headers if key == name), None)
