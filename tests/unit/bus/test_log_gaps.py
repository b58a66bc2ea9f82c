"""Log gaps: records removed unread are logged, records read by another member are not."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import msgspec
import pytest
import structlog
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError
from aiokafka.structs import OffsetAndMetadata

from dart_streams.bus import log_gaps
from dart_streams.bus.codec import encode
from dart_streams.bus.log_gaps import LogGaps
from dart_streams.config import parse
from tests import events
from topics import Topic, rollout_orders
from workers.recorder.main import Recorder
from workers.runtime.ordered_consumer import OrderedConsumer

PLACE = TopicPartition("dart.observations", 1)


class Group:
    """A consumer whose group has committed this offset; the broker is away if it is below 0."""

    def __init__(self, committed: int | None) -> None:
        self.offset = committed
        self.asked = 0

    async def committed(self, *_: Any) -> dict[TopicPartition, OffsetAndMetadata]:
        self.asked += 1
        if self.offset is not None and self.offset < 0:
            raise KafkaConnectionError("away")
        return {} if self.offset is None else {PLACE: OffsetAndMetadata(self.offset, "")}


@pytest.mark.parametrize(
    ("committed", "came", "gone"),
    [
        (None, [(0, 4), (5, 5), (6, 9)], []),
        (None, [(30, 40)], []),
        (7, [(7, 9)], []),
        (7, [(30, 40)], ["dart.observations[1]@7 to 29"]),
        (7, [(7, 9), (30, 40)], ["dart.observations[1]@10 to 29"]),
        (30, [(7, 9), (30, 40)], []),
        (25, [(7, 9), (30, 40)], ["dart.observations[1]@25 to 29"]),
        (7, [(7, 9), (7, 9), (10, 11)], []),
        (500, [(0, 3)], []),
        (-1, [(30, 40)], []),
    ],
)
async def test_records_removed_unread_are_logged(committed, came, gone, monkeypatch):
    monkeypatch.setattr(log_gaps, "committed_within", Group(committed).committed)
    with structlog.testing.capture_logs() as lines:
        gaps = LogGaps(structlog.get_logger())
        for first, last in came:
            await gaps.check(None, PLACE, first, last)  # type: ignore[arg-type]
    assert removed(lines) == gone


async def test_the_broker_is_asked_only_where_offsets_do_not_follow(monkeypatch):
    group = Group(0)
    monkeypatch.setattr(log_gaps, "committed_within", group.committed)
    gaps = LogGaps(structlog.get_logger())
    for offset in range(50):
        await gaps.check(None, PLACE, offset, offset)  # type: ignore[arg-type]
    assert group.asked == 1


def polled(topic: Topic, event: msgspec.Struct, offset: int) -> SimpleNamespace:
    """Return a record as a consumer polls it."""
    record = encode(topic, event)
    return SimpleNamespace(topic=f"dart.{topic.name}", partition=0, offset=offset, timestamp=0, **record._asdict())


def removed(lines: list[Any]) -> list[str]:
    return [line["records"] for line in lines if line["event"] == "records gone before they were read"]


async def test_an_environment_worker_names_the_orders_that_are_gone(monkeypatch):
    order = events.rollout_order()
    orders = OrderedConsumer(parse({}), "env-0", AsyncMock(), rollout_orders.TOPIC, "order_id", "env")
    place = TopicPartition("dart.rollout-orders", 0)
    orders.records.assign([place])
    orders._member.set()
    orders.consumer = SimpleNamespace(getone=AsyncMock(return_value=polled(rollout_orders.TOPIC, order, 7)))
    with structlog.testing.capture_logs() as lines:
        orders.gaps = LogGaps(structlog.get_logger())
        committed = AsyncMock(return_value={place: OffsetAndMetadata(3, "")})
        monkeypatch.setattr(log_gaps, "committed_within", committed)
        assert (await orders._read()).event == order
    assert removed(lines) == ["dart.rollout-orders[0]@3 to 6"]


async def test_the_recorder_names_the_observations_that_are_gone(monkeypatch):
    place = TopicPartition("dart.observations", 0)
    batch = [SimpleNamespace(offset=7), SimpleNamespace(offset=8)]
    recorder = Recorder(parse({}), "recorder-0", AsyncMock(write=AsyncMock(return_value=set())))
    recorder.records = SimpleNamespace(getmany=AsyncMock(return_value={place: batch}))
    with structlog.testing.capture_logs() as lines:
        recorder.gaps = LogGaps(structlog.get_logger())
        committed = AsyncMock(return_value={place: OffsetAndMetadata(3, "")})
        monkeypatch.setattr(log_gaps, "committed_within", committed)
        await recorder._take_batch()
    assert removed(lines) == ["dart.observations[0]@3 to 6"]
    assert recorder.gaps.next == {place: 9}
