"""A record with a header name that is not UTF-8 becomes one that says so; its neighbors pass as they are."""

import gzip
from typing import Any

import pytest
from aiokafka.record.memory_records import MemoryRecords as OfAiokafka
from aiokafka.record.util import calc_crc32c
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecords as OfKafkaPython

from dart_streams.bus.codec import UNREADABLE, Undecodable, decode
from dart_streams.bus.compressed_batches import replace_unreadable
from dart_streams.bus.header_names import batch_builder
from topics import curated

PARSERS = pytest.mark.parametrize("parse", [OfAiokafka, OfKafkaPython], ids=["aiokafka", "kafka-python"])
MARK = "~~"
"""Stands for the name that is wrong, in bytes of its length."""


def batch(records: list[list[tuple[str, bytes | None]]], wrong: bytes = b"\xff\xfe", codec: int = 0) -> bytes:
    """Return a batch of records with these headers, :data:`MARK` replaced by bytes that are not UTF-8."""
    builder = batch_builder(1 << 30)
    for number, headers in enumerate(records):
        builder.append(2 * number, 1_000 + number, b"key", b"value %d" % number, headers)
    made = bytearray(builder.build())
    made[61:] = bytes(made[61:]).replace(MARK.encode(), wrong)
    if codec:
        made[61:] = gzip.compress(bytes(made[61:]))
        made[22] |= codec
        made[8:12] = (len(made) - 12).to_bytes(4, "big")
    made[:8] = (70).to_bytes(8, "big")
    made[17:21] = calc_crc32c(bytes(made[21:])).to_bytes(4, "big")
    return bytes(made)


def read(parse: Any, fetched: bytes) -> tuple[list[Any], int]:
    records, found, after = parse(fetched), [], 0
    while records.has_next():
        one = records.next_batch()
        assert one.validate_crc()
        found += list(one)
        after = one.next_offset
    return found, after


@PARSERS
@pytest.mark.parametrize("codec", [0, 1], ids=["plain", "gzip"])
def test_only_the_record_with_such_a_name_is_replaced(parse, codec):
    before, after = [("id", b"1"), ("none", None)], [("traceparent", b"\xff\xfe")]
    fetched = batch([before, [("id", b"2"), (MARK, b"x")], after], codec=codec)
    found, end = read(parse, replace_unreadable(fetched))
    assert ([record.offset for record in found], end) == ([70, 72, 74], 75)
    assert [record.timestamp for record in found] == [1_000, 1_001, 1_002]
    assert [record.value for record in found] == [b"value 0", b"value 1", b"value 2"]
    assert [[*found[number].headers] for number in (0, 2)] == [before, after]
    with pytest.raises(Undecodable, match=r"not UTF-8.*the value takes 7 bytes"):
        decode(curated.TOPIC, found[1].value, [*found[1].headers])
    assert found[1].key is None


@PARSERS
@pytest.mark.parametrize("wrong", [b"\xff\xfe", b"\xc3(", b"\xed\xa0", b"\x80\x80", b"a\xc3"])
def test_every_way_not_to_be_text_is_contained(parse, wrong):
    found, _ = read(parse, replace_unreadable(batch([[(MARK, None)], [("id", b"1")]], wrong)))
    assert [dict(record.headers).get(UNREADABLE) is not None for record in found] == [True, False]


def test_batches_beside_it_pass_and_a_damaged_one_is_one_stand_in():
    good = batch([[("id", b"1")]])
    changed = replace_unreadable(good + batch([[(MARK, b"")]]) + good)
    assert changed.startswith(good)
    assert changed.endswith(good)
    assert replace_unreadable(good + good) == good + good
    damaged = bytearray(batch([[(MARK, b"x")]]))
    damaged[57:61] = (3).to_bytes(4, "big")
    found, _ = read(OfAiokafka, replace_unreadable(bytes(damaged)))
    assert "damaged" in dict(found[0].headers)[UNREADABLE].decode()


@given(st.lists(st.lists(st.tuples(st.text(max_size=9), st.none() | st.binary(max_size=9)), max_size=4), max_size=4))
def test_what_is_text_passes_whatever_it_is(records):
    plain = [[(name.replace("~", ""), value) for name, value in headers] for headers in records]
    if plain:
        assert replace_unreadable(batch(plain)) == batch(plain)
