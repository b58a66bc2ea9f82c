"""Start states: each is scored once, whoever asks for it."""

import asyncio
from unittest.mock import AsyncMock

import pytest

from dart_desktops.osworld.environment import StartStates
from workers.env.environment import EnvironmentFault


async def test_a_start_state_is_scored_once_by_all_who_ask_at_the_same_time():
    async def later() -> float:
        return await asyncio.sleep(0, 0.0)

    starts, score = StartStates(), AsyncMock(side_effect=later)
    await asyncio.gather(*(starts.require_unsolved("os/a", score) for _ in range(3)))
    assert score.await_count == 1


async def test_one_that_is_solved_is_refused_each_time_and_says_so():
    starts = StartStates()
    for _ in range(2):
        with pytest.raises(EnvironmentFault, match=r"os/a is not played: its untouched start state is worth 0.5"):
            await starts.require_unsolved("os/a", AsyncMock(return_value=0.5))


async def test_a_fault_says_nothing_of_the_task_and_is_tried_again():
    starts, score = StartStates(), AsyncMock(side_effect=[EnvironmentFault("no machine"), 0.0])
    with pytest.raises(EnvironmentFault, match="no machine"):
        await starts.require_unsolved("os/a", score)
    await starts.require_unsolved("os/a", score)
    assert score.await_count == 2
