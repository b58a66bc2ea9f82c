"""The flush barrier passes once the group has processed what the topic had, and names what it waits for."""

from typing import Any

import pytest
import structlog
from aiokafka.errors import KafkaConnectionError
from hypothesis import given
from hypothesis import strategies as st

from dart_streams.bus.flush_barrier import FlushBarrier, Stage, unprocessed_offsets
from dart_streams.bus.lag import GroupProgress
from tests.unit.clockwork import by_clockwork
from topics import observations

STAGE = Stage(observations.TOPIC, "recorder")
OFFSETS = st.dictionaries(st.integers(0, 3), st.integers(0, 9))


class Offsets:
    """A broker that answers, time after time, what a group has processed; the last answer stays. None: it is away."""

    def __init__(self, ends: dict[int, int], *processed: dict[int, int] | None) -> None:
        self.of = ends
        self.answers = list(processed)
        self.asked = 0
        self.grows = 5
        """Records that come meanwhile do not hold the barrier up."""

    async def progress(self, *_: Any) -> dict[int, GroupProgress]:
        answer = self.answers[min(self.asked, len(self.answers) - 1)]
        if answer is None:
            self.asked += 1
            raise KafkaConnectionError("away")
        found = {
            partition: GroupProgress(answer.get(partition, 0), end + self.grows * self.asked)
            for partition, end in self.of.items()
        }
        self.asked += 1
        return found


async def passed(offsets: Offsets, stall_s: float = 1000.0) -> list[Any]:
    """Return what is logged until the barrier is passed."""
    with structlog.testing.capture_logs() as lines:
        await FlushBarrier(offsets, structlog.get_logger(), stall_s).passed(STAGE)  # type: ignore[arg-type]
    return lines


@pytest.mark.parametrize(
    ("ends", "processed", "grows"),
    [
        ({0: 3, 1: 2}, [{0: 0, 1: 0}, {0: 3, 1: 1}, None, {0: 3, 1: 2}], 5),
        ({0: 0, 1: 0}, [{}], 5),
        ({0: 300}, [{0: 0}, {0: 1}, {0: 2}], -149),
    ],
    ids=["", "a topic without records", "a topic that is made anew meanwhile"],
)
@by_clockwork
async def test_it_waits_for_every_partition_up_to_the_ends_of_its_beginning(ends, processed, grows):
    offsets = Offsets(ends, *processed)
    offsets.grows = grows
    assert await passed(offsets) == []
    assert offsets.asked == len(processed)


@by_clockwork
async def test_a_stage_that_stands_still_is_named_with_its_offsets():
    [line] = await passed(Offsets({0: 3, 1: 2}, *[{0: 3, 1: 1}] * 15, {0: 3, 1: 2}), stall_s=10.0)
    assert line["waits_for"] == "group recorder to process records: observations[1] is committed up to 1 of 2"


@by_clockwork
async def test_a_broker_that_is_away_is_named():
    offsets = Offsets({0: 3}, *[None] * 15, {0: 3})
    offsets.grows = 0
    [line] = await passed(offsets, stall_s=10.0)
    assert (line["waits_for"], line["last_from"]) == (
        "the broker to say what observations has",
        "no broker (KafkaConnectionError)",
    )


@given(OFFSETS, OFFSETS)
def test_nothing_is_behind_exactly_when_every_partition_is_processed(ends, processed):
    missing = unprocessed_offsets(ends, processed)
    assert (not missing) == all(processed.get(partition, 0) >= end for partition, end in ends.items())
    assert all(offset < ends[partition] for partition, offset in missing.items())
