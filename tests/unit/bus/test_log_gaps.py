"""What was removed before it was read is named; what another member has read meanwhile is not."""

from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError
from aiokafka.structs import OffsetAndMetadata

from dart_streams.bus.log_gaps import LogGaps

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


class Log:
    def __init__(self) -> None:
        self.gone: list[str] = []

    def warning(self, _: str, **fields: Any) -> None:
        self.gone.append(fields["records"])


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
async def test_only_what_nobody_has_read_is_gone(committed, came, gone):
    log, group = Log(), Group(committed)
    gaps = LogGaps(log, group.committed)
    for first, last in came:
        await gaps.check(None, PLACE, first, last)  # type: ignore[arg-type]
    assert log.gone == gone


async def test_the_broker_is_asked_only_where_offsets_do_not_follow():
    group = Group(0)
    gaps = LogGaps(Log(), group.committed)
    for offset in range(50):
        await gaps.check(None, PLACE, offset, offset)  # type: ignore[arg-type]
    assert group.asked == 1
