"""Put raw records on topics that no client of this system sends: without key and value, too large, compressed."""

import contextlib
import struct
import time
import zlib
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from aiokafka import AIOKafkaProducer
from aiokafka.record.util import calc_crc32c

from dart_streams.bus.clients import start_within
from dart_streams.bus.codec import header_bytes
from dart_streams.bus.compressed_batches import HEADER
from dart_streams.bus.header_names import batch_builder
from dart_streams.config import Bus
from dart_streams.connection import auth
from tests.faults.generated_records import Record
from topics import Topic

GZIP, SNAPPY = 1, 2
ROOM = 2_000
"""What a batch takes beside its record's bytes, generously: a record that leaves less is sent compressed."""


class Place(NamedTuple):
    """Where a record lies; ``topic`` is without prefix."""

    topic: str
    partition: int
    offset: int


def built(codec: int, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """Return a batch of one record, compressed with gzip or snappy, or not."""
    builder = batch_builder(1 << 30)
    builder.append(0, int(time.time() * 1000), key, value, list(headers))
    plain = bytes(builder.build())
    if not codec:
        return plain
    data = plain[HEADER.size :]
    squeezer = zlib.compressobj(9, zlib.DEFLATED, 31)
    squeezed = squeezer.compress(data) + squeezer.flush() if codec == GZIP else snappy(data)
    made = bytearray(plain[: HEADER.size] + squeezed)
    struct.pack_into(">i", made, 8, len(made) - 12)
    made[22] = made[22] & ~0b111 | codec
    struct.pack_into(">I", made, 17, calc_crc32c(bytes(made[21:])))
    return bytes(made)


def snappy(data: bytes) -> bytes:
    """Return ``data`` in Snappy's raw format, as one literal of at most 64 KiB."""
    length, count = bytearray(), len(data)
    while count >= 0x80:
        length.append(count & 0x7F | 0x80)
        count >>= 7
    length.append(count)
    return bytes(length) + b"\xf4" + struct.pack("<H", len(data) - 1) + data


@contextlib.asynccontextmanager
async def raw_producer(bus: Bus) -> AsyncIterator[AIOKafkaProducer]:
    """Yield a producer for :func:`send_raw`; an idempotent one would number the batches."""
    producer = AIOKafkaProducer(**auth.kafka_arguments(bus), acks="all", client_id="poison")
    await start_within(producer, bus)
    try:
        yield producer
    finally:
        await producer.stop()


async def send_raw(producer: AIOKafkaProducer, bus: Bus, topic: Topic, partition: int, batch: bytes) -> Place:
    """Produce a batch as it is, past the client's own checks; return where the broker has put its record."""
    builder = producer.create_batch()
    builder.append(timestamp=None, key=b"", value=None)
    builder.close()
    builder._buffer = bytearray(batch)
    sent = await producer.send_batch(builder, bus.prefix + topic.name, partition=partition)
    return Place(topic.name, partition, (await sent).offset)


async def send(producer: AIOKafkaProducer, bus: Bus, record: Record, partition: int) -> Place:
    """Produce a generated record; one that is too large for its topic as it is goes compressed."""
    size = len(record.key or b"") + len(record.value or b"") + header_bytes(record.headers)
    codec = GZIP if size > record.topic.max_message_bytes - ROOM or len(record.headers) > ROOM else 0
    batch = built(codec, record.key, record.value, record.headers)
    return await send_raw(producer, bus, record.topic, partition, batch)
