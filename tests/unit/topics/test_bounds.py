"""Every field of every topic has bounds: a record outside them is refused when it is decoded, so no reader meets it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import topics
from dart_streams.bus.codec import Undecodable, decode
from topics import Topic
from topics.values import GroupSize

GOLDEN = Path(__file__).parents[1] / "golden"
LETHAL = {
    "int": ["1" + "0" * 400, str(2**63), str(2**40 * 1000), str(-(2**63)), "-2"],
    "float": ["1e400", "-1e400", "1e308"],
}
Path_ = tuple[str | int, ...]


def leaves(kind: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """Yield the place and the type of each number and text in a type; 0 is the place of a list's item."""
    match kind:
        case msgspec.inspect.StructType(fields=fields):
            for field in fields:
                yield from leaves(field.type, (*path, field.encode_name))
        case msgspec.inspect.UnionType(types=types):
            for one in types:
                yield from leaves(one, path)
        case msgspec.inspect.TupleType(item_types=items):
            for one in items:
                yield from leaves(one, (*path, 0))
        case msgspec.inspect.ListType(item_type=item) | msgspec.inspect.VarTupleType(item_type=item):
            yield from leaves(item, (*path, 0))
        case msgspec.inspect.DictType(key_type=key, value_type=value):
            yield from leaves(key, (*path, "key"))
            yield from leaves(value, (*path, "value"))
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType() | msgspec.inspect.StrType():
            yield path, kind


FIELDS = [(topic, path, kind) for topic in topics.ALL for path, kind in leaves(msgspec.inspect.type_info(topic.event))]
IDS = [f"{topic.name}:{'.'.join(map(str, path))}" for topic, path, _ in FIELDS]


@pytest.mark.parametrize(("topic", "path", "kind"), FIELDS, ids=IDS)
def test_every_field_has_bounds(topic: Topic, path: Path_, kind: Any):
    if isinstance(kind, msgspec.inspect.StrType):
        assert kind.max_length is not None
        assert kind.pattern is not None or not str(path[-1]).endswith(("_id", "sha256", "digest", "key"))
    else:
        assert kind.ge is not None
        assert kind.le is not None


def golden(topic: Topic) -> list[dict[str, Any]]:
    """Return records of a topic, as they were written once."""
    files = sorted(GOLDEN.glob(f"{topic.name}.v{topic.version}*.json"))
    return [json.loads(json.loads(file.read_text())["value"]) for file in files]


def with_values(topic: Topic, path: Path_, text: str) -> list[str]:
    """Return the golden records that have this place, as JSON with ``text`` in it."""
    return [record for record in (with_value(one, path, text) for one in golden(topic)) if record is not None]


def with_value(record: Any, path: Path_, text: str) -> str | None:
    """Return a record as JSON with ``text`` in one place; None if the record has no such place."""
    marker, parent, place = "\0place\0", record, path
    while len(place) > 1:
        step, place = place[0], place[1:]
        if not parent:
            return None
        parent = parent[step] if isinstance(step, int) else parent.get(step)
    if not parent or place[0] == "key":
        return None
    parent[next(iter(parent)) if place[0] == "value" else place[0]] = marker
    return json.dumps(record).replace(json.dumps(marker), text)


@pytest.mark.parametrize(("topic", "path", "kind"), FIELDS, ids=IDS)
def test_a_lethal_value_is_refused(topic: Topic, path: Path_, kind: Any):
    family = {"IntType": "int", "FloatType": "float", "StrType": "str"}[type(kind).__name__]
    headers = [("schema", topic.schema.encode())]
    for record in golden(topic):
        decode(topic, json.dumps(record).encode(), headers)
    texts = LETHAL[family] if family != "str" else [json.dumps("7" * (kind.max_length + 1))]
    texts += map(
        json.dumps,
        ("/a", "a//b", "/../a", "..", "a/./b", "a\0", "a\n", "\x7f") if getattr(kind, "pattern", None) else (),
    )
    # A text as long as a record may be may make the record larger than that.
    refusals = r"Expected|out of range|a record has at most"
    for text in texts:
        for record in with_values(topic, path, text):
            with pytest.raises(Undecodable, match=refusals):
                decode(topic, record.encode(), headers)


def test_most_places_are_in_the_golden_records():
    """Otherwise the test above tries nothing."""
    left_out = [name for name, (topic, path, _) in zip(IDS, FIELDS, strict=True) if not with_values(topic, path, "0")]
    assert len(left_out) <= 0.15 * len(FIELDS), left_out


@given(st.integers(0, 2**16))
def test_a_group_of_any_size_within_the_bounds_is_read(size: int):
    assert msgspec.json.decode(str(size).encode(), type=GroupSize) == size
