"""Compressed batches: replaced before a client expands them, if they grow too large or this program lacks their codec.

A client expands a whole batch at once, and a megabyte may hold gigabytes; a codec that is not installed raises before
any record is seen. Either way the consumer's position would never move. So such a batch is replaced, in the bytes of
the fetch, by one record at the batch's last offset. Its header :data:`~dart_streams.bus.codec.UNREADABLE` has the
reason: it does not decode, so it is dead-lettered as every other record that does not.

The producers of this system compress nothing; batches that come uncompressed pass as they are, unless a header's name
is not UTF-8 (:mod:`~dart_streams.bus.header_names`).
"""

import gzip
import hashlib
import struct
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from dart_streams.bus import header_names
from dart_streams.bus.codec import UNREADABLE

MAX_EXPANDED_BYTES = 32 * 1024 * 1024
"""The largest batch when expanded: more than a full batch of JSON comes to."""
HEAD_BYTES = 1024
"""The bytes of a batch, as it is compressed, that its stand-in has as its value."""
CODECS = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
CODEC = 0b111
"""The bits of a batch's attributes that name its codec."""
GZIP = 1
GZIP_WINDOW = 31
PREFIX = struct.Struct(">qi")
"""A batch begins with its base offset and the length of what follows (Kafka's record batch, version 2)."""
HEADER = struct.Struct(">qiibIhiqqqhii")
MAGIC_AT = 16
MAGIC = 2


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


def replace_unreadable(fetched: bytes) -> bytes:
    """Return the record batches of a fetch, with a stand-in for each that could not be read."""
    parts, kept = [], 0
    for start, end, batch in split_batches(fetched):
        read = readable_batch(batch, fetched[start:end])
        if read is not None:
            parts += [fetched[kept:start], read]
            kept = end
    return b"".join([*parts, fetched[kept:]]) if kept else fetched


def readable_batch(batch: RecordBatch, fetched: bytes) -> bytes | None:
    """Return what takes the place of a batch that the clients could not read; None if they can."""
    data = fetched[HEADER.size :]
    is_compressed = bool(batch.attributes & CODEC)
    if is_compressed and (reason := refusal_reason(batch, data)):
        return stand_in(batch, data, reason)
    if header_names.decodes(fetched):
        return None
    try:
        return header_names.with_stand_ins(expanded_batch(fetched) if is_compressed else fetched)
    except (ValueError, IndexError, struct.error) as error:
        return stand_in(batch, data, f"a batch of {batch.records} records that is damaged: {error}")


def expanded_batch(fetched: bytes) -> bytes:
    """Return a batch that gzip compresses as it was before; its CRC is that of the compressed one."""
    return fetched[: HEADER.size] + gzip.decompress(fetched[HEADER.size :])


def split_batches(fetched: bytes) -> Iterator[tuple[int, int, RecordBatch]]:
    """Yield start, end and header of each whole batch of version 2."""
    start = 0
    while start + HEADER.size <= len(fetched):
        _, length = PREFIX.unpack_from(fetched, start)
        end = start + PREFIX.size + length
        if end > len(fetched) or length <= 0:
            return
        if fetched[start + MAGIC_AT] == MAGIC:
            yield start, end, RecordBatch(*HEADER.unpack_from(fetched, start))
        start = end


def refusal_reason(batch: RecordBatch, data: bytes) -> str:
    """Return why a compressed batch is not read, empty if it is."""
    codec = CODECS.get(batch.attributes & CODEC, "an unknown codec")
    first, last = batch.base_offset, batch.base_offset + batch.last_offset_delta
    what = f"a batch of {batch.records} records (offsets {first} to {last}), compressed with {codec}"
    if batch.attributes & CODEC != GZIP:
        return f"{what}: only gzip is read"
    try:
        return f"{what}: more than {MAX_EXPANDED_BYTES} bytes when expanded" if expands_too_far(data) else ""
    except zlib.error as error:
        return f"{what}: {error}"


def expands_too_far(data: bytes) -> bool:
    """Say whether gzip's members expand to more than :data:`MAX_EXPANDED_BYTES`, in bounded memory."""
    left, rest = MAX_EXPANDED_BYTES, data
    while rest:
        member = zlib.decompressobj(GZIP_WINDOW)
        while not member.eof and rest:
            left -= len(member.decompress(rest, min(left + 1, 1 << 20)))
            if left < 0:
                return True
            rest = member.unconsumed_tail
        rest = member.unused_data
    return False


def stand_in(batch: RecordBatch, data: bytes, reason: str) -> bytes:
    """Return an uncompressed batch of one record at the last offset of ``batch``."""
    builder = DefaultRecordBatchBuilder(
        magic=MAGIC,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    facts = f"{reason} ({len(data)} bytes as they are, sha256 {hashlib.sha256(data).hexdigest()})"
    headers = [(UNREADABLE, facts.encode())]
    builder.append(batch.last_offset_delta, batch.max_timestamp, None, data[:HEAD_BYTES], headers)
    built = builder.build()
    struct.pack_into(">q", built, 0, batch.base_offset)
    struct.pack_into(">i", built, PREFIX.size, batch.leader_epoch)
    return bytes(built)


def limit_fetches(client: Any) -> None:
    """Make the fetchers of ``client``, a library's module ``consumer.fetcher``, apply :func:`replace_unreadable`.

    Neither aiokafka (0.14) nor kafka-python (3.0) has a hook, so their parser is replaced, once.
    """
    parse = client.MemoryRecords
    if getattr(parse, "bounded", False):
        return

    def bounded(fetched: Any) -> Any:
        return parse(replace_unreadable(bytes(fetched)))

    bounded.bounded = True  # type: ignore[attr-defined]
    client.MemoryRecords = bounded
