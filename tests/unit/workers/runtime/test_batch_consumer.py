"""Offsets of handled batches: none is committed for a partition that has been elsewhere since."""

import asyncio
from typing import Any

from aiokafka import ConsumerRecord, TopicPartition

from dart_streams.config import parse
from topics import observations
from workers.runtime import batch_consumer
from workers.runtime.batch_consumer import BatchConsumer

PLACE = TopicPartition("dart.default.observations", 1)


def record(offset: int) -> ConsumerRecord:
    return ConsumerRecord(PLACE.topic, PLACE.partition, offset, 1, 0, None, b"", None, 0, 0, ())


class Slow(BatchConsumer):
    """Handles a batch once it may."""

    max_records, commit_interval_s = 10, 1e9

    async def handle(self, polled: Any) -> str:
        self.began.set()
        await self.may.wait()
        return "env"


async def test_a_partition_that_left_and_returned_keeps_its_newer_offset(monkeypatch):
    """A slow batch of offsets up to 99; meanwhile another member takes the partition to 200, and leaves."""
    committed: list[dict[TopicPartition, int]] = []

    async def commit(_: Any, offsets: dict[TopicPartition, int]) -> None:
        committed.append(dict(offsets))

    monkeypatch.setattr(batch_consumer, "commit_within", commit)
    member = Slow(parse({}), "w", observations.TOPIC, "recorder")
    member.began, member.may = asyncio.Event(), asyncio.Event()
    batches = [{PLACE: [record(99)]}, {}]

    async def polled(**_: Any) -> Any:
        return batches.pop(0)

    monkeypatch.setattr(member.records, "getmany", polled)
    monkeypatch.setattr(member.records, "assignment", lambda: {PLACE})
    taking = asyncio.create_task(member._take_batch())
    await member.began.wait()
    member.on_partitions_revoked([PLACE])
    member.on_partitions_assigned([PLACE])
    member.may.set()
    await taking
    await member._commit()
    assert committed == []
    batches.insert(0, {PLACE: [record(200)]})
    await member._take_batch()
    await member._commit()
    assert committed == [{PLACE: 201}]
