"""Actions that models write as JSON: objects found in an answer, and their values checked."""

import re
from collections.abc import Container
from typing import Any

import msgspec

from dart_streams.actions.dialects import json_reader
from dart_streams.actions.dialects.dialect import (
    AnswerBuilder,
    Coordinates,
    MultipleActions,
    Strictness,
    split_keys,
    written_numbers,
)
from dart_streams.actions.grammar import Unparsable

FENCE_MARK = re.compile(r"```(?:json)?")
BETWEEN = re.compile(r"(?:[\s,;}]++|```(?:json)?)*")
"""What may stand between objects that should be alone, and after the last."""
CHARACTERS = {" ": "space", "\t": "tab", "\n": "enter", "\r": "enter"}
"""Keys that OSWorld and pyautogui also name by what they type."""
NUMERIC = re.compile(r"\s*-?[0-9]{1,7}(?:\.[0-9]{1,6})?\s*", re.ASCII)
PLACES = ("coordinate", "coordinates", "position", "point", "start_box")
"""Names under which models write a place."""
LARGEST = 1_000_000
"""Numbers beyond it are no place, and no amount, of anything."""

Fields = dict[str, Any]


class JsonDialect(msgspec.Struct, frozen=True, kw_only=True):
    """What dialects of JSON actions share: their settings, and that the prompt recalls answers as they were."""

    coordinates: Coordinates = "absolute"
    strictness: Strictness = "strict"
    several: MultipleActions = "first"
    tokens: tuple[str, ...] = ()
    separate: bool = False

    def history_text(self, answer: str) -> str:
        """Return an earlier answer as it was."""
        return answer


def objects_of(value: Any) -> list[Fields]:
    """Return the objects that a value is: one, or a list of them. Raises :class:`Unparsable` for anything else."""
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        return list(value)
    if not isinstance(value, dict):
        raise Unparsable(f"not a JSON object: {str(value)[:80]!r}")
    return [value]


def objects_between(text: str, begin: int, end: int, found: AnswerBuilder) -> list[Fields]:
    """Return the objects that fill a text from ``begin`` to ``end``."""
    region = text[:end]
    fields: list[Fields] = []
    while begin < end:
        value, after, wrong = json_reader.read(
            region, begin, lambda place: next_object_start(region, place) is not None
        )
        found.wrong += wrong
        fields += objects_of(value)
        begin = next_object_start(region, after) or end
        if "}" in region[after:begin]:
            found.note("json", "a brace too many")
    return fields


def next_object_start(text: str, position: int) -> int | None:
    """Return where the next object begins, or the text ends; None if other words come first."""
    match = BETWEEN.match(text, position)
    end = match.end() if match else position
    return end if end == len(text) or text[end] == "{" else None


def loose_objects(text: str, found: AnswerBuilder) -> list[Fields]:
    """Return the objects in a text that should hold nothing else, from its first brace to its last."""
    begin, end = text.find("{"), text.rfind("}") + 1
    if begin < 0:
        raise Unparsable(f"no JSON object in the answer: {text[:80]!r}")
    if end <= begin:
        raise Unparsable(f"the JSON object is not closed: {text[begin : begin + 80]!r}", "cut")
    if any(FENCE_MARK.sub("", words).strip() for words in (text[:begin], text[end:])):
        found.note("text", "words around the JSON object")
    return objects_between(text, begin, end, found)


def optional_number_field(fields: Fields, key: str, found: AnswerBuilder) -> float | None:
    """Return a number; None if it is not given."""
    return None if fields.get(key) is None else number_field(fields, key, found)


def number_field(fields: Fields, key: str, found: AnswerBuilder) -> float:
    """Return a number; one that is written as a text is noted."""
    value = fields.get(key)
    if isinstance(value, str) and NUMERIC.fullmatch(value):
        found.note("argument", f"{key} is a text, not a number")
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:
        raise Unparsable(f"{key} is not a number up to {LARGEST}: {str(value)[:80]}")
    return float(value)


def place_numbers(value: Any, found: AnswerBuilder) -> tuple[float, ...]:
    """Return the two or four numbers of a place; other forms than a list of two are noted."""
    match value:
        case [int() | float(), int() | float()]:
            return tuple(number_field({"coordinate": part}, "coordinate", found) for part in value)
        case [[_, _] as inner] | [[_, _, _, _] as inner] | [str() as inner]:
            written: Any = inner
        case [[first, second], [third, fourth]]:
            written = [first, second, third, fourth]
        case {"x": x, "y": y}:
            written = [x, y]
        case str():
            found.note("place", f"coordinate is a text: {value[:80]!r}")
            if (read := written_numbers(value)) is not None:
                return read
            raise Unparsable(f"coordinate is not a list of two numbers: {value[:80]!r}", "place")
        case [_, _] | [_, _, _, _]:
            found.note("place", f"coordinate is not a list of two numbers: {str(value)[:80]}")
            return tuple(number_field({"coordinate": part}, "coordinate", found) for part in value)
        case _:
            raise Unparsable(f"coordinate is not a list of two numbers: {str(value)[:80]}", "place")
    found.note("place", f"coordinate is not a list of two numbers: {str(value)[:80]}")
    return place_numbers(written, found)


def place_elsewhere(fields: Fields, known: Container[str]) -> Any:
    """Return the place that fields of other names give, as x and y or in one; None if none does.

    Raises :class:`Unparsable` if something else there may be one.
    """
    unknown = {key: value for key, value in fields.items() if key not in known}
    if {"x", "y"} <= unknown.keys():
        return [unknown["x"], unknown["y"]]
    found = [key for key in PLACES if key in unknown]
    if len(found) == 1:
        return unknown[found[0]]
    several = sorted(key for key, value in unknown.items() if isinstance(value, list | dict))
    single = sorted(key for key, value in unknown.items() if isinstance(value, int | float))
    if several or len(single) > 1:
        raise Unparsable(f"a place may be among {', '.join(several or single)[:80]}", "place")
    return None


def text_field(fields: Fields, key: str) -> str:
    """Return a text."""
    value = fields.get(key)
    if not isinstance(value, str):
        raise Unparsable(f"{key} is not a text: {str(value)[:80]}")
    return value


def keys_field(fields: Fields, key: str, found: AnswerBuilder) -> tuple[str, ...]:
    """Return the keys of a combination: a list of names. Several in one text are noted."""
    value = fields.get(key)
    if isinstance(value, str):
        found.note("key", f"{key} is not a list: {value[:80]!r}")
        value = [value]
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise Unparsable(f"{key} is not a list of keys: {str(value)[:80]}", "key")
    return tuple(part for name in value for part in split_key_name(name, found))


def split_key_name(name: str, found: AnswerBuilder) -> tuple[str, ...]:
    """Return the key of a name, or the keys of a combination within it, which is noted."""
    if name in CHARACTERS:
        return (CHARACTERS[name],)
    parts = split_keys(name)
    if parts != (name,):
        found.note("key", f"a combination where one key should be: {name[:80]!r}")
    return parts


def key_field(fields: Fields, key: str, found: AnswerBuilder) -> str:
    """Return the one key that a text names."""
    parts = split_key_name(text_field(fields, key), found)
    if len(parts) > 1:
        raise Unparsable(f"{key} is more than one key: {str(fields[key])[:80]!r}", "key")
    return parts[0]


def encode_spaced(fields: Fields) -> str:
    """Return an object as models write it."""
    return add_spaces(msgspec.json.encode(fields).decode())


def add_spaces(text: str) -> str:
    """Return compact JSON with a blank after each comma and colon that is not within a string."""
    pieces = re.split(r'("(?:[^"\\]|\\.)*")', text)
    return "".join(piece if number % 2 else re.sub(r"([,:])", r"\1 ", piece) for number, piece in enumerate(pieces))
