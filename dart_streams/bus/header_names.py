"""Header names that are not UTF-8: a record with one is replaced by a stand-in, before a client decodes it.

Kafka takes any bytes as a header's name, and both clients decode them while they parse a fetch. One record would end
every consumer of its topic, at each start again. So each batch is parsed once beforehand, by aiokafka's compiled
parser; only one that raises is taken apart here.
"""

import hashlib
import struct
from collections.abc import Iterator
from typing import NamedTuple

from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import calc_crc32c

from dart_streams.bus.codec import UNREADABLE

RECORDS_AT = 61
"""Where the records of a batch of version 2 begin."""
CRC_AT, CRC_FROM, LAST_DELTA_AT, BASE_TIMESTAMP_AT, COUNT_AT = 17, 21, 23, 27, 57
HEAD_BYTES = 1024
"""The bytes of a record's value that its stand-in has."""

Headers = list[tuple[str, bytes | None]]


class RawRecord(NamedTuple):
    """A record of a batch, its offset as the distance from the batch's first one; header names as they are."""

    offset_delta: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes, bytes | None]]


def decodes(batch: bytes) -> bool:
    """Say whether the clients can decode the headers of a batch; one that is corrupt is left to them."""
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
    """Return an uncompressed batch of version 2 with a stand-in for each record that no client can parse.

    Raises ``ValueError``, ``IndexError`` or ``struct.error`` if the batch is damaged in other ways.
    """
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    for record in raw_records(batch):
        key, value, headers = decode_record(record)
        builder.append(record.offset_delta, record.timestamp, key, value, headers)
    made = bytearray(builder.build())
    made[:8] = batch[:8]
    made[12:16] = batch[12:16]
    made[LAST_DELTA_AT : LAST_DELTA_AT + 4] = batch[LAST_DELTA_AT : LAST_DELTA_AT + 4]
    struct.pack_into(">I", made, CRC_AT, calc_crc32c(bytes(made[CRC_FROM:])))
    return bytes(made)


def decode_record(record: RawRecord) -> tuple[bytes | None, bytes | None, Headers]:
    """Return key, value and headers of a record, or of its stand-in."""
    try:
        return record.key, record.value, [(name.decode(), value) for name, value in record.headers]
    except UnicodeDecodeError:
        wrong = next(name for name, _ in record.headers if not is_text(name))
    value = record.value or b""
    reason = (
        f"the name of a header is not UTF-8: {wrong[:100]!r} "
        f"(the value takes {len(value)} bytes, sha256 {hashlib.sha256(value).hexdigest()})"
    )
    return None, value[:HEAD_BYTES], [(UNREADABLE, reason.encode())]


def is_text(name: bytes) -> bool:
    """Say whether a header's name is UTF-8."""
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def raw_records(batch: bytes) -> Iterator[RawRecord]:
    """Yield the records of an uncompressed batch (https://kafka.apache.org/documentation/#record)."""
    [base_timestamp] = struct.unpack_from(">q", batch, BASE_TIMESTAMP_AT)
    [count] = struct.unpack_from(">i", batch, COUNT_AT)
    at = RECORDS_AT
    for _ in range(count):
        length, at = read_varint(batch, at)
        end = at + length
        timestamp_delta, at = read_varint(batch, at + 1)
        offset_delta, at = read_varint(batch, at)
        key, at = read_field(batch, at)
        value, at = read_field(batch, at)
        headers = []
        number, at = read_varint(batch, at)
        for _ in range(number):
            name, at = read_field(batch, at)
            content, at = read_field(batch, at)
            headers.append((name or b"", content))
        yield RawRecord(offset_delta, base_timestamp + timestamp_delta, key, value, headers)
        at = end


def read_field(batch: bytes, at: int) -> tuple[bytes | None, int]:
    """Return the bytes that begin with their length, None for a negative one, and where they end."""
    length, at = read_varint(batch, at)
    if length < 0:
        return None, at
    if at + length > len(batch):
        raise ValueError(f"a field of {length} bytes reaches past the end of its batch")
    return bytes(batch[at : at + length]), at + length


def read_varint(batch: bytes, at: int) -> tuple[int, int]:
    """Return the zigzag-encoded number at a place, and where it ends; raise ``IndexError`` past the batch."""
    value = shift = 0
    while True:
        byte, at = batch[at], at + 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return (value >> 1) ^ -(value & 1), at
