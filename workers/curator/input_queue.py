"""Records queued from Faust for an agent, and their batches."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from dart_streams.background import wait_first
from dart_streams.bus.clients import SendCoalescer
from dart_streams.bus.codec import header_bytes
from dart_streams.curation.journal import JournalInput
from dart_streams.curation.reducer import InputRecord
from workers.curator.changelogs import MAX_RECORD_BYTES

MAX_BATCH = 512
"""Maximum records of a batch, and of the queue."""
MAX_ENTRY_BYTES = MAX_RECORD_BYTES // 4
"""Bytes that complete a batch; its last record may be large."""
CHECK_INTERVAL_S = 1.0


class InputQueue(asyncio.Queue[Any]):
    """Records queued from Faust for an agent's next batch."""

    def __init__(self) -> None:
        super().__init__(MAX_BATCH)
        self.filled = asyncio.Event()

    async def wait_until_full(self, pace: SendCoalescer) -> None:
        """Return once a batch is full, at the latest when ``pace`` releases the next one."""
        self.filled.clear()
        if not self.full():
            await wait_first(pace.wait(), self.filled.wait())

    async def next_batch(self, pace: SendCoalescer) -> list[Any]:
        """Return the queued records that fit into one journal entry, at least one; none after a second without any."""
        try:
            async with asyncio.timeout(CHECK_INTERVAL_S):
                batch = [await self.get()]
        except TimeoutError:
            return []
        await self.wait_until_full(pace)
        size = size_of(batch[0].message)
        while len(batch) < MAX_BATCH and size < MAX_ENTRY_BYTES and not self.empty():
            batch.append(self.get_nowait())
            size += size_of(batch[-1].message)
        return batch


async def enqueue_records(queue: InputQueue, stream: Any) -> None:
    """Queue the records of a stream without acknowledging them; runs as the Faust agent."""
    async for event in stream.noack().events():
        await queue.put(event)
        if queue.full():
            queue.filled.set()


def size_of(record: Any) -> int:
    """Return the size of a record in the journal (bytes)."""
    return len(record.key or b"") + len(record.value or b"") + header_bytes(record.headers or ())


def split_batches(
    inputs: Sequence[tuple[JournalInput, InputRecord]],
) -> Iterator[list[tuple[JournalInput, InputRecord]]]:
    """Yield inputs in order, in batches that fit into one journal entry."""
    batch: list[tuple[JournalInput, InputRecord]] = []
    size = 0
    for read, record in inputs:
        if batch and (len(batch) == MAX_BATCH or size >= MAX_ENTRY_BYTES):
            yield batch
            batch, size = [], 0
        batch.append((read, record))
        size += size_of(read)
    if batch:
        yield batch
