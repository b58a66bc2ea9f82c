import json
import math
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

import topics
from dart_streams.bus.codec import MAX_HEADER_BYTES, Undecodable, Unencodable, decode, encode, find_header
from topics import Topic


class Old(msgspec.Struct, frozen=True, kw_only=True):
    name: str


class New(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    color: str = "grey"


OLD = Topic(name="paint", event=Old, key="name", version=1)
NEW = Topic(name="paint", event=New, key="name", version=2)


def test_an_older_version_decodes_with_defaults_and_unknown_fields_pass():
    record = encode(OLD, Old(name="wall"))
    assert decode(NEW, record.value, record.headers) == New(name="wall", color="grey")
    assert decode(OLD, b'{"name":"wall","later":{"deep":[1]}}', [("schema", b"paint/1")]) == Old(name="wall")


def test_a_newer_version_is_refused_and_the_reason_names_both():
    record = encode(NEW, New(name="wall"))
    with pytest.raises(Undecodable, match="'paint/2' is newer than this program's 'paint/1'"):
        decode(OLD, record.value, record.headers)


@pytest.mark.parametrize("schema", [b"varnish/1", b"paint", b"paint/one", b"\xff/1", b"", b"paint/" + b"9" * 5000])
def test_another_schema_is_refused(schema: bytes):
    with pytest.raises(Undecodable, match="is not of topic 'paint'"):
        decode(OLD, b'{"name":"wall"}', [("schema", schema)])


NESTED = b'{"name":"wall","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize("value", [None, b"", b"not json", b'{"name":1}', b"{}", b"\xff", b'{"name":"\xff"}', NESTED])
def test_a_value_that_is_no_event_is_refused(value: bytes | None):
    with pytest.raises(Undecodable):
        decode(OLD, value, [])


def test_an_oversized_value_is_refused_before_it_is_decoded():
    inside = json.dumps({"name": "x" * (OLD.max_message_bytes - 20)}).encode()
    assert len(decode(OLD, inside, []).name) > 2**19
    with pytest.raises(Undecodable, match=f"a record has at most {OLD.max_message_bytes}"):
        decode(OLD, inside + b" " * 20, [])


def test_headers_beyond_their_bound_are_refused_and_null_ones_are_not():
    value = b'{"name":"wall"}'
    assert decode(OLD, value, [("schema", None), ("x", b"y" * (MAX_HEADER_BYTES - 10))]) == Old(name="wall")
    with pytest.raises(Undecodable, match="the headers take"):
        decode(OLD, value, [("x", b"y" * MAX_HEADER_BYTES)])


@given(st.binary(max_size=200), st.lists(st.tuples(st.sampled_from(["schema", "id"]), st.binary(max_size=20))))
def test_no_bytes_raise_anything_but_undecodable(value: bytes, headers: list[tuple[str, bytes]]):
    for topic in topics.ALL:
        try:
            decode(topic, value, headers)
        except Undecodable as error:
            assert str(error)


class Bounded(msgspec.Struct, frozen=True, kw_only=True):
    name: Annotated[str, Meta(min_length=1, max_length=10)] = "wall"
    share: Annotated[float, Meta(ge=0, le=1)] | None = None
    shares: list[Annotated[float, Meta(ge=0, le=1)]] = []
    inner: dict[str, Old] = {}


BOUNDED = Topic(name="bounded", event=Bounded, key="name")


class FloatOfItsOwn(float):
    pass


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"share": math.nan}, r"nan at \$\.share is read as None"),
        ({"share": math.inf}, r"inf at \$\.share is read as None"),
        ({"share": -1.0}, r">= 0.*\$\.share"),
        ({"share": 1.7}, r"<= 1.*\$\.share"),
        ({"share": True}, r"bool.*\$\.share"),
        ({"share": "1"}, r"str.*\$\.share"),
        ({"share": FloatOfItsOwn(0.5)}, "FloatOfItsOwn is unsupported"),
        ({"shares": [0.5, math.nan]}, r"\$\.shares\[1\]"),
        ({"shares": None}, r"null.*\$\.shares"),
        ({"name": ""}, "length >= 1"),
        ({"name": "w" * 11}, "length <= 10"),
        ({"name": "\ud83d"}, "surrogates not allowed"),
        ({"name": None}, r"null.*\$\.name"),
        ({"name": b"wall"}, ""),
        ({"inner": {"a": New(name="x", color="red")}}, r"\$\.inner\.a"),
        ({"inner": {"\ud83d": Old(name="x")}}, "surrogates not allowed"),
        ({"inner": {"a": object()}}, "unsupported"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_an_event_that_readers_would_misread_is_refused_by_encode(fields, reason: str):
    with pytest.raises(Unencodable, match=f"an event of bounded cannot be published: .*{reason}"):
        encode(BOUNDED, Bounded(**fields))


def test_an_oversized_event_is_refused_by_encode():
    with pytest.raises(Unencodable, match=f"a record has at most {OLD.max_message_bytes}"):
        encode(OLD, Old(name="\u4e16" * (OLD.max_message_bytes // 3)))
    with pytest.raises(Unencodable, match="the headers take"):
        encode(OLD, Old(name="wall"), [("x", bytes(MAX_HEADER_BYTES))])


def test_sequences_and_whole_numbers_of_other_types_are_accepted():
    sent = Bounded(share=1, shares=(0, 0.5))  # type: ignore[arg-type]
    record = encode(BOUNDED, sent)
    assert decode(BOUNDED, record.value, record.headers) == Bounded(share=1.0, shares=[0.0, 0.5])


def test_an_event_of_another_topic_is_a_programming_error():
    with pytest.raises(TypeError, match="paint carries Old, not New"):
        encode(OLD, New(name="wall"))


def test_headers_of_the_caller_follow_the_codecs_own_with_an_id_for_each():
    record = encode(OLD, Old(name="wall"), [("traceparent", b"00-1")], record_id="r1")
    assert record.key == b"wall"
    assert record.headers == [("schema", b"paint/1"), ("id", b"r1"), ("traceparent", b"00-1")]
    ids: set[Any] = {find_header(encode(OLD, Old(name="wall")).headers, "id") for _ in range(3)}
    assert len(ids) == 3
