"""Actions as JSON objects: extraction from an answer and validation of fields."""

import re
from collections.abc import Container, Iterator
from typing import Any

from dart_streams.actions.arguments import InvalidArguments, check_arguments
from dart_streams.actions.dialects import json_reader
from dart_streams.actions.dialects.dialect import AnswerBuilder, split_keys, written_numbers
from dart_streams.actions.grammar import Unparsable
from dart_streams.actions.typed import Call

FENCE_MARK = re.compile(r"```(?:json)?")
ENDS = re.compile(r"(?P<more>(?:[\s,;}]++|```(?:json)?)*+)(?:(?P<next>\{)|\Z)")
"""Text allowed between objects, and after the last."""
CHARACTERS = {" ": "space", "\t": "tab", "\n": "enter", "\r": "enter"}
"""Keys that OSWorld and pyautogui also name by their character."""
NUMERIC = re.compile(r"\s*-?[0-9]{1,7}(?:\.[0-9]{1,6})?\s*", re.ASCII)
COORDINATE_ALIASES = ("coordinate", "coordinates", "position", "point", "start_box")
MAX_MAGNITUDE = 1_000_000

Fields = dict[str, Any]


def objects_of(value: Any) -> list[Fields]:
    """Return the objects of a value, one or a list; raise :class:`Unparsable` for anything else."""
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        return list(value)
    if not isinstance(value, dict):
        raise Unparsable(f"not a JSON object: {str(value)[:80]!r}")
    return [value]


def read_values(
    text: str, begin: int, ends: re.Pattern[str], builder: AnswerBuilder
) -> Iterator[tuple[Any, re.Match[str]]]:
    """Yield the values from ``begin`` on, each with the match of ``ends`` after it.

    ``ends`` matches the text that may follow a value, ``more`` of it before the ``next`` value.
    """
    while begin >= 0:
        value, end, wrong = json_reader.read(text, begin, lambda place: ends.match(text, place) is not None)
        builder.wrong += wrong
        after = ends.match(text, end)
        assert after is not None
        yield value, after
        if "}" in after["more"]:
            builder.note("json", "a brace too many")
        begin = after.start("next")


def loose_objects(text: str, builder: AnswerBuilder) -> list[Fields]:
    """Return the objects between the first and the last brace; other text is noted."""
    begin, end = text.find("{"), text.rfind("}") + 1
    if begin < 0:
        raise Unparsable(f"no JSON object in the answer: {text[:80]!r}")
    if end <= begin:
        raise Unparsable(f"the JSON object is not closed: {text[begin : begin + 80]!r}", "cut")
    if any(FENCE_MARK.sub("", words).strip() for words in (text[:begin], text[end:])):
        builder.note("text", "words around the JSON object")
    return [item for value, _ in read_values(text[:end], begin, ENDS, builder) for item in objects_of(value)]


def function_call(item: Fields) -> Call:
    """Return the call of an offered function; raise :class:`Unparsable` unless it has a name and arguments."""
    name = text_field(item, "name")
    try:
        return Call(name, check_arguments(item.get("arguments") or {}))
    except InvalidArguments as error:
        raise Unparsable(f"the arguments of {name[:80]!r}: {error}", "call") from None


def optional_number_field(fields: Fields, key: str, builder: AnswerBuilder) -> float | None:
    """Return a number, None if it is not given."""
    return None if fields.get(key) is None else number_field(fields, key, builder)


def number_field(fields: Fields, key: str, builder: AnswerBuilder) -> float:
    """Return a number; one written as a text is noted."""
    value = fields.get(key)
    if isinstance(value, str) and NUMERIC.fullmatch(value):
        builder.note("argument", f"{key} is a text, not a number")
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MAX_MAGNITUDE:
        raise Unparsable(f"{key} is not a number up to {MAX_MAGNITUDE}: {str(value)[:80]}")
    return float(value)


def place_numbers(value: Any, builder: AnswerBuilder) -> tuple[float, ...]:
    """Return the two or four numbers of coordinates; forms other than a list of two are noted."""
    match value:
        case [int() | float(), int() | float()]:
            return tuple(number_field({"coordinate": part}, "coordinate", builder) for part in value)
        case [[_, _] as inner] | [[_, _, _, _] as inner] | [str() as inner]:
            written: Any = inner
        case [[first, second], [third, fourth]]:
            written = [first, second, third, fourth]
        case {"x": x, "y": y}:
            written = [x, y]
        case str():
            builder.note("place", f"coordinate is a text: {value[:80]!r}")
            if (read := written_numbers(value)) is not None:
                return read
            raise Unparsable(f"coordinate is not a list of two numbers: {value[:80]!r}", "place")
        case [_, _] | [_, _, _, _]:
            builder.note("place", f"coordinate is not a list of two numbers: {str(value)[:80]}")
            return tuple(number_field({"coordinate": part}, "coordinate", builder) for part in value)
        case _:
            raise Unparsable(f"coordinate is not a list of two numbers: {str(value)[:80]}", "place")
    builder.note("place", f"coordinate is not a list of two numbers: {str(value)[:80]}")
    return place_numbers(written, builder)


def place_elsewhere(fields: Fields, known: Container[str]) -> Any:
    """Return coordinates given under other names, None if there are none.

    Raises :class:`Unparsable` if another field may hold coordinates.
    """
    unknown = {key: value for key, value in fields.items() if key not in known}
    if {"x", "y"} <= unknown.keys():
        return [unknown["x"], unknown["y"]]
    aliases = [key for key in COORDINATE_ALIASES if key in unknown]
    if len(aliases) == 1:
        return unknown[aliases[0]]
    several = sorted(key for key, value in unknown.items() if isinstance(value, list | dict))
    single = sorted(key for key, value in unknown.items() if isinstance(value, int | float))
    if several or len(single) > 1:
        raise Unparsable(f"a place may be among {', '.join(several or single)[:80]}", "place")
    return None


def text_field(fields: Fields, key: str) -> str:
    """Return a text; raise :class:`Unparsable` for any other value."""
    value = fields.get(key)
    if not isinstance(value, str):
        raise Unparsable(f"{key} is not a text: {str(value)[:80]}")
    return value


def keys_field(fields: Fields, key: str, builder: AnswerBuilder) -> tuple[str, ...]:
    """Return the keys of a combination, a list of names; several in one text are noted."""
    value = fields.get(key)
    if isinstance(value, str):
        builder.note("key", f"{key} is not a list: {value[:80]!r}")
        value = [value]
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise Unparsable(f"{key} is not a list of keys: {str(value)[:80]}", "key")
    return tuple(part for name in value for part in split_key_name(name, builder))


def split_key_name(name: str, builder: AnswerBuilder) -> tuple[str, ...]:
    """Return the keys of a name; a combination is noted."""
    if name in CHARACTERS:
        return (CHARACTERS[name],)
    parts = split_keys(name)
    if parts != (name,):
        builder.note("key", f"a combination where one key should be: {name[:80]!r}")
    return parts


def key_field(fields: Fields, key: str, builder: AnswerBuilder) -> str:
    """Return the single key of a text."""
    parts = split_key_name(text_field(fields, key), builder)
    if len(parts) > 1:
        raise Unparsable(f"{key} is more than one key: {str(fields[key])[:80]!r}", "key")
    return parts[0]
