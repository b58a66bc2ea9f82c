"""Actions that models write as JSON: objects found in an answer, and their values checked."""

import re
from typing import Any

import msgspec

from dart_streams.actions.dialects.dialect import Coordinates, Found, Several, Strictness, split_keys
from dart_streams.actions.grammar import LONGEST_ANSWER, Unparsable

FENCED = re.compile(r"```(?:json)?[ \t]*\n(.*?)\n?[ \t]*```", re.DOTALL)
CHARACTERS = {" ": "space", "\t": "tab", "\n": "enter", "\r": "enter"}
"""Keys that OSWorld and pyautogui also name by what they type."""
LARGEST = 1_000_000
"""Numbers beyond it are no place, and no amount, of anything."""

Fields = dict[str, Any]


class JsonDialect(msgspec.Struct, frozen=True, kw_only=True):
    """What dialects of JSON actions share: their settings, and that the prompt recalls answers as they were."""

    coordinates: Coordinates = "absolute"
    strictness: Strictness = "strict"
    several: Several = "first"
    tokens: tuple[str, ...] = ()
    separate: bool = False

    def recalled(self, answer: str) -> str:
        """Return an earlier answer as it was."""
        return answer


def bounded(answer: str) -> str:
    """Return an answer; raise :class:`Unparsable` if it is too long to be looked at."""
    if len(answer) > LONGEST_ANSWER:
        raise Unparsable(f"the answer has {len(answer)} characters, more than {LONGEST_ANSWER}")
    return answer


def decoded(text: str) -> Any:
    """Return what a JSON text says; raise :class:`Unparsable` if it is none."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Unparsable(f"not JSON ({error}): {text[:80]!r}") from None


def object_of(text: str) -> Fields:
    """Return the object that a JSON text says; raise :class:`Unparsable` if it is none."""
    value = decoded(text)
    if not isinstance(value, dict):
        raise Unparsable(f"not a JSON object: {text[:80]!r}")
    return value


def loose_objects(text: str, found: Found) -> list[Fields]:
    """Return the objects in a text that should hold nothing else: the whole between braces, else one a line."""
    begin, end = text.find("{"), text.rfind("}")
    if begin < 0:
        raise Unparsable(f"no JSON object in the answer: {text[:80]!r}")
    if end < begin:
        raise Unparsable(f"the JSON object is not closed: {text[begin : begin + 80]!r}", "cut")
    if text[:begin].strip() or text[end + 1 :].strip():
        found.note("text", "words around the JSON object")
    try:
        return [object_of(text[begin : end + 1])]
    except Unparsable:
        lines = [line.strip() for line in text[begin : end + 1].splitlines() if line.strip()]
        if len(lines) < 2:
            raise
        return [object_of(line) for line in lines]


def optional_number(fields: Fields, key: str) -> float | None:
    """Return a number; None if it is not given."""
    return None if fields.get(key) is None else number(fields, key)


def number(fields: Fields, key: str) -> float:
    """Return a number."""
    value = fields.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > LARGEST:
        raise Unparsable(f"{key} is not a number up to {LARGEST}: {str(value)[:80]}")
    return float(value)


def text(fields: Fields, key: str) -> str:
    """Return a text."""
    value = fields.get(key)
    if not isinstance(value, str):
        raise Unparsable(f"{key} is not a text: {str(value)[:80]}")
    return value


def keys(fields: Fields, key: str, found: Found) -> tuple[str, ...]:
    """Return the keys of a combination: a list of names. Several in one text are noted."""
    value = fields.get(key)
    if isinstance(value, str):
        found.note("key", f"{key} is not a list: {value[:80]!r}")
        value = [value]
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise Unparsable(f"{key} is not a list of keys: {str(value)[:80]}", "key")
    return tuple(part for name in value for part in keys_in(name, found))


def keys_in(name: str, found: Found) -> tuple[str, ...]:
    """Return the key of a name, or the keys of a combination within it, which is noted."""
    if name in CHARACTERS:
        return (CHARACTERS[name],)
    parts = split_keys(name)
    if parts != (name,):
        found.note("key", f"a combination where one key should be: {name[:80]!r}")
    return parts


def one_key(fields: Fields, key: str, found: Found) -> str:
    """Return the one key that a text names."""
    parts = keys_in(text(fields, key), found)
    if len(parts) > 1:
        raise Unparsable(f"{key} is more than one key: {str(fields[key])[:80]!r}", "key")
    return parts[0]


def compact(fields: Fields) -> str:
    """Return an object as models write it."""
    return spaced(msgspec.json.encode(fields).decode())


def spaced(text: str) -> str:
    """Return compact JSON with a blank after each comma and colon that is not within a string."""
    pieces = re.split(r'("(?:[^"\\]|\\.)*")', text)
    return "".join(piece if number % 2 else re.sub(r"([,:])", r"\1 ", piece) for number, piece in enumerate(pieces))
