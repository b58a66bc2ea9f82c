import asyncio
import math

import pytest

from dart_streams.deadline import Deadline
from tests.unit.clockwork import SetClock


def test_the_time_left_shrinks_to_nothing_and_not_below():
    clock = SetClock()
    deadline = Deadline(10, clock)
    assert (deadline.remaining_s, deadline.timeout_s, deadline.expired) == (10, 10, False)
    clock.now_s += 4
    assert (deadline.remaining_s, deadline.timeout_s, deadline.expired) == (6, 6, False)
    clock.now_s += 6
    assert (deadline.remaining_s, deadline.timeout_s, deadline.expired) == (0, 0, True)
    clock.now_s += 100
    assert (deadline.remaining_s, deadline.timeout_s, deadline.expired) == (0, 0, True)


def test_none_is_no_bound_and_no_time_at_all_has_expired_at_once():
    clock = SetClock()
    deadline = Deadline(None, clock)
    clock.now_s += 1e9
    assert (deadline.remaining_s, deadline.timeout_s, deadline.expired) == (math.inf, None, False)
    assert Deadline(0, SetClock()).expired


async def test_it_bounds_awaits():
    async with Deadline(None).timeout():
        await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        async with Deadline(0.01).timeout():
            await asyncio.Event().wait()
