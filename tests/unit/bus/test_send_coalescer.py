"""Records that come together go together, in order; one that comes alone goes at once."""

import asyncio
import contextlib

import pytest

from dart_streams.bus.send_coalescer import SendCoalescer


def goes_at_once(pace: SendCoalescer) -> bool:
    turn = pace.turn()
    try:
        turn.send(None)
    except StopIteration:
        return True
    turn.close()
    return False


async def test_the_first_goes_at_once_and_the_next_does_not():
    pace = SendCoalescer(60.0)
    assert goes_at_once(pace)
    assert not goes_at_once(pace)


async def test_turns_are_a_gap_apart():
    pace, loop = SendCoalescer(0.01), asyncio.get_running_loop()
    began = loop.time()
    for _ in range(4):
        await pace.turn()
    assert loop.time() - began >= 0.03 - loop._clock_resolution  # three gaps  # type: ignore[attr-defined]


async def test_those_who_wait_go_together_and_in_order():
    pace, gone, turns = SendCoalescer(0.01), [], []

    async def go(number: int) -> None:
        await pace.turn()
        gone.append(number)
        turns.append(pace._next_s)

    await asyncio.gather(*(go(number) for number in range(20)))
    assert gone == list(range(20))
    assert len(set(turns)) == 2, "the first alone, all others with the turn after it"


async def test_one_that_is_cancelled_takes_nobody_with_it():
    pace = SendCoalescer(0.01)
    await pace.turn()
    given_up, patient = (asyncio.create_task(pace.turn()) for _ in range(2))
    await asyncio.sleep(0)
    given_up.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await given_up
    await asyncio.wait_for(patient, 10)
    with pytest.raises(asyncio.CancelledError):
        given_up.result()
