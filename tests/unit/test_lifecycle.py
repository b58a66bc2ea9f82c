"""How a process lives and ends."""

import asyncio
import contextlib
import gc
import os
import pty
import signal
import subprocess
import sys

import pytest

from workers.lifecycle import (
    AUTOGROUP,
    COLLECT_AFTER,
    GIVE_WAY,
    PartEnded,
    spare_the_collector,
    stop_on_signals,
    together,
    unless,
)


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


@pytest.mark.parametrize("nice", [0, GIVE_WAY + 7], ids=["as usual", "nicer already"])
def test_what_nobody_waits_for_gives_way_and_never_takes_it(nice):
    program = (
        "import os; from workers import lifecycle; "
        f"os.nice({nice}); lifecycle.give_way(); print(os.getpriority(os.PRIO_PROCESS, 0)); "
        "print(lifecycle.AUTOGROUP.read_text().split()[-1] if lifecycle.AUTOGROUP.exists() else lifecycle.GIVE_WAY)"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, start_new_session=True)
    mine, group = map(int, told.stdout.split())
    assert mine >= max(nice, GIVE_WAY)
    assert group >= GIVE_WAY


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="only where sessions are groups")
def test_a_worker_in_somebodys_terminal_leaves_the_session_alone():
    program = "from workers import lifecycle; lifecycle.give_way(); print(lifecycle.AUTOGROUP.read_text())"
    child, terminal = pty.fork()
    if not child:
        os.execv(sys.executable, [sys.executable, "-c", program])
    told = b""
    with os.fdopen(terminal, "rb", 0) as output, contextlib.suppress(OSError):  # a terminal ends with an error
        while part := output.read(1000):
            told += part
    assert os.waitpid(child, 0)[1] == 0
    assert told.split()[-1] == b"0"
