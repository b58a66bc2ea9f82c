"""Records that come together go together, in order; one that comes alone goes at once."""

import asyncio
import contextlib

import pytest

from dart_streams.bus.clients import SendCoalescer
from tests.unit.clockwork import by_clockwork


def sends_at_once(coalescer: SendCoalescer) -> bool:
    waiting = coalescer.wait()
    try:
        waiting.send(None)
    except StopIteration:
        return True
    waiting.close()
    return False


@by_clockwork
async def test_the_first_sends_at_once_with_those_of_its_turn():
    coalescer = SendCoalescer(60.0)
    assert sends_at_once(coalescer)
    assert sends_at_once(coalescer)
    await asyncio.sleep(0)
    assert not sends_at_once(coalescer)


@by_clockwork
async def test_releases_are_a_gap_apart():
    coalescer, loop = SendCoalescer(0.01), asyncio.get_running_loop()
    began = loop.time()
    for _ in range(4):
        await coalescer.wait()
        await asyncio.sleep(0)
    assert loop.time() - began == pytest.approx(0.03), "three gaps"


@by_clockwork
async def test_waiting_senders_are_released_together_in_order():
    coalescer, sent, releases = SendCoalescer(0.01), [], []

    async def send(number: int) -> None:
        await coalescer.wait()
        sent.append(number)
        releases.append(coalescer._next_s)

    await send(0)
    await asyncio.sleep(0)
    await asyncio.gather(*(send(number) for number in range(1, 20)))
    assert sent == list(range(20))
    assert len(set(releases)) == 2, "the first alone, all others with the next release"


@by_clockwork
async def test_a_cancelled_sender_cancels_no_other():
    coalescer = SendCoalescer(0.01)
    await coalescer.wait()
    await asyncio.sleep(0)
    given_up, patient = (asyncio.create_task(coalescer.wait()) for _ in range(2))
    await asyncio.sleep(0)
    given_up.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await given_up
    await asyncio.wait_for(patient, 10)
    with pytest.raises(asyncio.CancelledError):
        given_up.result()


@by_clockwork
async def test_the_patient_go_with_the_next_that_does_not_wait_for_others():
    coalescer, sent = SendCoalescer(0.0), []

    async def join() -> None:
        await coalescer.join(60.0)
        sent.append("patient")

    patient = asyncio.create_task(join())
    await asyncio.sleep(0)
    assert not sent
    await coalescer.wait()
    await asyncio.wait_for(patient, 10)
    assert sent == ["patient"]


@by_clockwork
async def test_the_patient_go_with_a_release_that_was_waited_for_or_their_own():
    coalescer = SendCoalescer(0.01)
    await coalescer.wait()
    await asyncio.sleep(0)
    patient, waiting = asyncio.create_task(coalescer.join(60.0)), asyncio.create_task(coalescer.wait())
    await asyncio.wait_for(asyncio.gather(patient, waiting), 10)
    coalescer = SendCoalescer(0.0)
    short, long = asyncio.create_task(coalescer.join(0.01)), asyncio.create_task(coalescer.join(60.0))
    await asyncio.wait_for(asyncio.gather(short, long), 10)


@by_clockwork
async def test_hurry_releases_the_patient_once():
    coalescer = SendCoalescer(60.0)
    first = asyncio.create_task(coalescer.join(60.0))
    await asyncio.sleep(0)
    coalescer.hurry()
    await asyncio.wait_for(first, 10)
    second = asyncio.create_task(coalescer.join(60.0))
    _, still = await asyncio.wait([second], timeout=0.02)
    assert still
    second.cancel()
