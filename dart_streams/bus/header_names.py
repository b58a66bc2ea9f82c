"""Stand-ins for records whose header names are not UTF-8, inserted before a client decodes them.

Kafka accepts any bytes as a header's name, but both clients decode them while parsing a fetch. One record would end
every consumer of its topic at each start. Each batch is parsed once by aiokafka's compiled parser; only one that raises
is taken apart here.
"""

import hashlib
import struct
from collections.abc import Iterator
from typing import NamedTuple

from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBase, DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import calc_crc32c, decode_varint_py

from dart_streams.bus.codec import UNREADABLE

HEADER = DefaultRecordBase.HEADER_STRUCT
CRC_AT, CRC_FROM = DefaultRecordBase.CRC_OFFSET, DefaultRecordBase.ATTRIBUTES_OFFSET
KEPT = ((0, 8), (12, 16), (23, 27))
"""Bytes of a batch's base offset, leader epoch and last offset delta."""
HEAD_BYTES = 1024
"""Bytes of the value in a stand-in."""

Headers = list[tuple[str, bytes | None]]


class RecordBatch(NamedTuple):
    """The header of a record batch (https://kafka.apache.org/documentation/#recordbatch)."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: int


class RawRecord(NamedTuple):
    """A record with undecoded header names; ``offset_delta`` counts from the batch's first offset."""

    offset_delta: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes, bytes | None]]


def decodes(batch: bytes) -> bool:
    """Return whether clients can decode a batch's headers; a corrupt batch is left to them."""
    records = MemoryRecords(batch)
    try:
        while records.has_next():
            for _ in records.next_batch():
                pass
    except UnicodeDecodeError:
        return False
    except CorruptRecordException:
        return True
    return True


def with_stand_ins(batch: bytes) -> bytes:
    """Return an uncompressed batch of version 2 with stand-ins for unparsable records.

    Raises ``ValueError``, ``IndexError`` or ``struct.error`` if the batch is damaged in other ways.
    """
    builder = batch_builder(1 << 30)
    for record in raw_records(batch):
        key, value, headers = decode_record(record)
        builder.append(record.offset_delta, record.timestamp, key, value, headers)
    rebuilt = bytearray(builder.build())
    for start, end in KEPT:
        rebuilt[start:end] = batch[start:end]
    struct.pack_into(">I", rebuilt, CRC_AT, calc_crc32c(bytes(rebuilt[CRC_FROM:])))
    return bytes(rebuilt)


def batch_builder(max_bytes: int) -> DefaultRecordBatchBuilder:
    """Return a builder of an uncompressed batch of version 2."""
    return DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=max_bytes,
    )


def decode_record(record: RawRecord) -> tuple[bytes | None, bytes | None, Headers]:
    """Return key, value and headers of a record or of its stand-in."""
    try:
        return record.key, record.value, [(name.decode(), value) for name, value in record.headers]
    except UnicodeDecodeError as error:
        wrong = error.object
    value = record.value or b""
    reason = (
        f"the name of a header is not UTF-8: {wrong[:100]!r} "
        f"(the value takes {len(value)} bytes, sha256 {hashlib.sha256(value).hexdigest()})"
    )
    return None, value[:HEAD_BYTES], [(UNREADABLE, reason.encode())]


def raw_records(batch: bytes) -> Iterator[RawRecord]:
    """Yield the records of an uncompressed batch (https://kafka.apache.org/documentation/#record)."""
    header, at = RecordBatch(*HEADER.unpack_from(batch)), HEADER.size
    for _ in range(header.records):
        length, at = decode_varint_py(batch, at)
        end = at + length
        timestamp_delta, at = decode_varint_py(batch, at + 1)
        offset_delta, at = decode_varint_py(batch, at)
        key, at = read_field(batch, at)
        value, at = read_field(batch, at)
        headers = []
        number, at = decode_varint_py(batch, at)
        for _ in range(number):
            name, at = read_field(batch, at)
            content, at = read_field(batch, at)
            headers.append((name or b"", content))
        yield RawRecord(offset_delta, header.base_timestamp + timestamp_delta, key, value, headers)
        at = end


def read_field(batch: bytes, at: int) -> tuple[bytes | None, int]:
    """Return a length-prefixed field, None for a negative length, and its end."""
    length, at = decode_varint_py(batch, at)
    if length < 0:
        return None, at
    if at + length > len(batch):
        raise ValueError(f"a field of {length} bytes reaches past the end of its batch")
    return bytes(batch[at : at + length]), at + length
