"""A compressed batch that this program must not or cannot expand becomes one record that says so; others pass."""

import gzip
import tracemalloc
import zlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords as OfAiokafka
from aiokafka.record.util import calc_crc32c
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecords as OfKafkaPython

from dart_streams.bus import compressed_batches
from dart_streams.bus.codec import UNREADABLE, Undecodable, decode
from dart_streams.bus.compressed_batches import MAX_EXPANDED_BYTES, limit_fetches, replace_unreadable
from topics import curated

PARSERS = pytest.mark.parametrize("parse", [OfAiokafka, OfKafkaPython], ids=["aiokafka", "kafka-python"])


def batch(values: Sequence[bytes], base: int = 0, codec: int = 0) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    for number, value in enumerate(values):
        builder.append(number, 1_000 + number, b"key", value, [("x", b"y")])
    made = builder.build()
    made[:8] = base.to_bytes(8, "big")
    return bytes(made)


def with_codec(made: bytes, codec: int) -> bytes:
    """The same batch under another codec's number, with its checksum."""
    changed = bytearray(made)
    changed[22] = changed[22] & ~0b111 | codec
    changed[17:21] = calc_crc32c(bytes(changed[21:])).to_bytes(4, "big")
    return bytes(changed)


def read(parse: Any, fetched: bytes) -> list[tuple[int, bytes | None, dict[str, bytes]]]:
    records, found = parse(fetched), []
    while records.has_next():
        one = records.next_batch()
        assert one.validate_crc()
        found += [(record.offset, record.value, dict(record.headers)) for record in one]
        assert one.next_offset == found[-1][0] + 1
    return found


@PARSERS
def test_an_oversized_batch_becomes_one_record_at_its_last_offset(parse: Any):
    bomb = batch([b"0" * (MAX_EXPANDED_BYTES // 2)] * 3, base=7, codec=1)
    fetched = batch([b"a", b"b"], base=5) + bomb + batch([b"c"], base=10)
    found = read(parse, replace_unreadable(fetched))
    assert [(offset, value) for offset, value, _ in found if offset != 9] == [(5, b"a"), (6, b"b"), (10, b"c")]
    _, head, headers = found[2]
    reason = headers[UNREADABLE].decode()
    assert "3 records (offsets 7 to 9)" in reason
    assert str(MAX_EXPANDED_BYTES) in reason
    assert len(head or b"") == 1024
    with pytest.raises(Undecodable, match="not read: a batch of 3 records"):
        decode(curated.TOPIC, head, [*headers.items()])


@PARSERS
@pytest.mark.parametrize(
    ("codec", "reason"), [(1, b"gzip"), *((codec, b"only gzip is read") for codec in (2, 3, 4, 7))]
)
def test_what_another_codec_or_no_gzip_is_becomes_one_record_that_says_so(parse: Any, codec: int, reason: bytes):
    [(offset, _, headers)] = read(parse, replace_unreadable(with_codec(batch([b"a", b"b"], base=3), codec)))
    assert offset == 4
    assert reason in headers[UNREADABLE]


@PARSERS
def test_gzip_within_the_bound_is_read_as_it_is(parse: Any):
    fetched = batch([b"a" * 1000, b"b"], codec=1)
    assert replace_unreadable(fetched) is fetched
    assert [value for _, value, _ in read(parse, fetched)] == [b"a" * 1000, b"b"]


def test_a_bomb_is_refused_in_bounded_memory():
    data = gzip.compress(bytes(8 * MAX_EXPANDED_BYTES))
    cut = len(data) // 4
    torn = data[:cut] + b"\xff" * (len(data) - cut)
    with pytest.raises(zlib.error):
        zlib.decompress(torn, 31)
    tracemalloc.start()
    assert compressed_batches.expands_too_far(torn)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * 2**20


def test_members_of_one_stream_count_together():
    member = gzip.compress(bytes(MAX_EXPANDED_BYTES // 2))
    assert not compressed_batches.expands_too_far(member * 2)
    assert compressed_batches.expands_too_far(member * 2 + gzip.compress(b"x"))


@given(st.binary(max_size=400), st.integers(0, 3))
def test_any_bytes_are_passed_or_replaced_but_raise_nothing(noise: bytes, cut: int):
    replace_unreadable(noise)
    replace_unreadable(batch([b"a"], codec=1)[: -cut or None] + noise)


def test_a_client_is_bounded_once():
    client = SimpleNamespace(MemoryRecords=OfAiokafka)
    limit_fetches(client)
    first = client.MemoryRecords
    limit_fetches(client)
    assert client.MemoryRecords is first
    assert client.MemoryRecords(bytearray(batch([b"a"]))).has_next()
