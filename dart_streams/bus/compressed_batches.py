"""Protection of consumers against compressed batches that expand too far or use an unknown codec.

Clients expand a whole batch at once, and a megabyte may hold gigabytes; a codec that is not installed raises before any
record is seen. Either would stop a consumer for good. Such a batch is replaced, in the fetched bytes, by one record at
its last offset. The header :data:`~dart_streams.bus.codec.UNREADABLE` has the reason, and the record is dead-lettered.

Producers of this system compress nothing. Uncompressed batches pass unchanged unless a header's name is not UTF-8
(:mod:`~dart_streams.bus.header_names`).
"""

import gzip
import hashlib
import struct
import zlib
from collections.abc import Iterator
from typing import Any

from aiokafka.record.default_records import DefaultRecordBase

from dart_streams.bus import header_names
from dart_streams.bus.codec import UNREADABLE
from dart_streams.bus.header_names import HEADER, RecordBatch

MAX_EXPANDED_BYTES = 32 * 1024 * 1024
"""Maximum expanded batch, larger than a full batch of JSON."""
HEAD_BYTES = 1024
"""Compressed bytes in the value of a stand-in."""
CODECS = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
CODEC, GZIP = DefaultRecordBase.CODEC_MASK, DefaultRecordBase.CODEC_GZIP
GZIP_WINDOW = 31
MAGIC = 2
AFTER_LENGTH = DefaultRecordBase.AFTER_LEN_OFFSET


def replace_unreadable(fetched: bytes) -> bytes:
    """Return the record batches of a fetch, with a stand-in for each unreadable one."""
    parts, copied = [], 0
    for start, end, batch in split_batches(fetched):
        read = readable_batch(batch, fetched[start:end])
        if read is not None:
            parts += [fetched[copied:start], read]
            copied = end
    return b"".join([*parts, fetched[copied:]]) if copied else fetched


def readable_batch(batch: RecordBatch, fetched: bytes) -> bytes | None:
    """Return the replacement of a batch that clients could not read; None if they can."""
    data = fetched[HEADER.size :]
    is_compressed = bool(batch.attributes & CODEC)
    if is_compressed and (reason := refusal_reason(batch, data)):
        return stand_in(batch, data, reason)
    if header_names.decodes(fetched):
        return None
    try:
        # The CRC stays that of the compressed batch; the header does not name the codec.
        expanded = fetched[: HEADER.size] + gzip.decompress(data) if is_compressed else fetched
        return header_names.with_stand_ins(expanded)
    except (ValueError, IndexError, struct.error) as error:
        return stand_in(batch, data, f"a batch of {batch.records} records that is damaged: {error}")


def split_batches(fetched: bytes) -> Iterator[tuple[int, int, RecordBatch]]:
    """Yield start, end and header of each complete batch of version 2."""
    start = 0
    while start + HEADER.size <= len(fetched):
        batch = RecordBatch(*HEADER.unpack_from(fetched, start))
        end = start + AFTER_LENGTH + batch.length
        if end > len(fetched) or batch.length <= 0:
            return
        if batch.magic == MAGIC:
            yield start, end, batch
        start = end


def refusal_reason(batch: RecordBatch, data: bytes) -> str:
    """Return the reason to refuse a compressed batch, empty if it is readable."""
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
    """Return whether gzip's members expand beyond :data:`MAX_EXPANDED_BYTES`, in bounded memory."""
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
    builder = header_names.batch_builder(1 << 20)
    facts = f"{reason} ({len(data)} bytes as they are, sha256 {hashlib.sha256(data).hexdigest()})"
    headers = [(UNREADABLE, facts.encode())]
    builder.append(batch.last_offset_delta, batch.max_timestamp, None, data[:HEAD_BYTES], headers)
    built = builder.build()
    struct.pack_into(">q", built, 0, batch.base_offset)
    struct.pack_into(">i", built, AFTER_LENGTH, batch.leader_epoch)
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
