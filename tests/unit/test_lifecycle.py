"""How a process lives and ends."""

import asyncio
import gc
import os
import signal

import pytest

from workers.lifecycle import COLLECT_AFTER, PartEnded, spare_the_collector, stop_on_signals, together, unless


async def for_ever() -> None:
    await asyncio.Event().wait()


async def at_once() -> None:
    return


async def broken() -> None:
    raise OSError("the disk is gone")


async def test_work_that_ends_ends_what_supports_it():
    support = asyncio.ensure_future(for_ever())
    await together(at_once(), support=support)
    assert support.cancelled()


async def test_support_that_ends_even_cleanly_is_an_error_that_names_it():
    with pytest.raises(PartEnded, match="replies should go on"):
        await together(for_ever(), replies=at_once(), commits=for_ever())


async def test_the_error_of_a_part_is_raised_as_it_is():
    with pytest.raises(OSError, match="the disk is gone"):
        await together(for_ever(), replies=broken())
    with pytest.raises(OSError, match="the disk is gone"):
        await together(broken(), replies=for_ever())


async def test_a_start_is_given_up_when_told_to_stop_and_cleans_up():
    stop, cleaned = asyncio.Event(), asyncio.Event()

    async def start() -> str:
        stop.set()
        try:
            await for_ever()
        finally:
            cleaned.set()
        return "started"

    assert await unless(stop, start()) is None
    assert cleaned.is_set()


async def test_a_start_that_succeeds_or_fails_says_so():
    stop = asyncio.Event()

    async def start() -> str:
        return "started"

    assert await unless(stop, start()) == "started"
    with pytest.raises(OSError, match="disk"):
        await unless(stop, broken())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signals_ask_to_stop(number):
    stop = stop_on_signals()
    os.kill(os.getpid(), number)
    async with asyncio.timeout(5):
        await stop.wait()


def test_the_collector_leaves_alone_what_is_there_and_looks_less_often():
    before = gc.get_threshold()
    try:
        spare_the_collector()
        assert gc.get_freeze_count() > 1000
        assert gc.get_threshold() == COLLECT_AFTER
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
