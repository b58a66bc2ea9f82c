"""Records on their way from Faust to an agent, and how many of them make a batch."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from dart_streams.bus.clients import SendCoalescer
from dart_streams.bus.codec import header_bytes
from dart_streams.curation.journal import JournalInput
from dart_streams.curation.reducer import InputRecord
from workers.curator.changelogs import MAX_RECORD_BYTES

MAX_BATCH = 512
"""Records of one batch; as many may be queued for the next."""
MAX_ENTRY_BYTES = MAX_RECORD_BYTES // 4
"""With as many bytes a batch is full: its last record may be large itself."""
CHECK_INTERVAL_S = 1.0
"""Time between two checks for a stall."""


class InputQueue(asyncio.Queue[Any]):
    """Records on their way from Faust to an agent's next batch."""

    def __init__(self) -> None:
        super().__init__(MAX_BATCH)
        self.filled = asyncio.Event()

    async def wait_until_full(self, pace: SendCoalescer) -> None:
        """Return when there are enough records for a batch, at the latest when ``pace`` lets the next ones begin."""
        self.filled.clear()
        if self.full():
            return
        waits = [asyncio.create_task(pace.wait()), asyncio.create_task(self.filled.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def next_batch(self, pace: SendCoalescer) -> list[Any]:
        """Return the queued records that fit into one journal entry, at least one; none if none comes for a second."""
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
    """Queue the records of a stream without acknowledging them. This is the Faust agent."""
    async for event in stream.noack().events():
        await queue.put(event)
        if queue.full():
            queue.filled.set()


def size_of(record: Any) -> int:
    """Return the size in bytes of a record, as the journal has it."""
    return len(record.key or b"") + len(record.value or b"") + header_bytes(record.headers or ())


def split_batches(
    inputs: Sequence[tuple[JournalInput, InputRecord]],
) -> Iterator[list[tuple[JournalInput, InputRecord]]]:
    """Yield inputs in order, as many at once as fit into one journal entry, at least one."""
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
