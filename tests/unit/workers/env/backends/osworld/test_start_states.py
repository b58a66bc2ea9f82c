"""Start states: each is scored once, whoever asks for it."""

import asyncio

import pytest

from workers.env.backends.osworld.environment import StartStates
from workers.env.environment import EnvironmentFault


async def test_a_start_state_is_scored_once_by_all_who_ask_at_the_same_time():
    starts, asked = StartStates(), []

    async def score() -> float:
        asked.append(1)
        await asyncio.sleep(0)
        return 0.0

    await asyncio.gather(*(starts.require_unsolved("os/a", score) for _ in range(3)))
    assert len(asked) == 1


async def test_one_that_is_solved_is_refused_each_time_and_says_so():
    starts = StartStates()

    async def score() -> float:
        return 0.5

    for _ in range(2):
        with pytest.raises(EnvironmentFault, match=r"os/a is not played: its untouched start state is worth 0.5"):
            await starts.require_unsolved("os/a", score)


async def test_a_fault_says_nothing_of_the_task_and_is_tried_again():
    starts, outcomes = StartStates(), [EnvironmentFault("no machine"), 0.0]

    async def score() -> float:
        outcome = outcomes.pop(0)
        if isinstance(outcome, EnvironmentFault):
            raise outcome
        return outcome

    with pytest.raises(EnvironmentFault, match="no machine"):
        await starts.require_unsolved("os/a", score)
    await starts.require_unsolved("os/a", score)
    assert not outcomes
