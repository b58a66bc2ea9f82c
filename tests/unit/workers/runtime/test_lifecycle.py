"""How a process lives and ends."""

import asyncio
import gc
import os
import signal
import threading

import pytest

from dart_streams.background import stop_signals
from dart_streams.config import Config
from workers.runtime import lifecycle


async def for_ever() -> None:
    await asyncio.Event().wait()


async def at_once() -> None:
    return


async def broken() -> None:
    raise OSError("the disk is gone")


async def test_work_that_ends_ends_its_support_whose_end_or_error_is_raised():
    support = asyncio.ensure_future(for_ever())
    await lifecycle.run_until_first_exit(at_once(), support=support)
    assert support.cancelled()
    with pytest.raises(lifecycle.UnexpectedExit, match="background task exited: replies"):
        await lifecycle.run_until_first_exit(for_ever(), replies=at_once(), commits=for_ever())
    with pytest.raises(OSError, match="the disk is gone"):
        await lifecycle.run_until_first_exit(for_ever(), replies=broken())
    with pytest.raises(OSError, match="the disk is gone"):
        await lifecycle.run_until_first_exit(broken(), replies=for_ever())


async def test_a_process_has_threads_for_its_own_cores_and_not_for_its_hosts(monkeypatch):
    """A container of one core on a host of 64 had 32 threads for blocking calls."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {5})
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    threads, all_asked = set[int](), threading.Event()

    async def connect(*_: object) -> lifecycle.Worker:
        calls = [asyncio.to_thread(lambda: (threads.add(threading.get_ident()), all_asked.wait())) for _ in range(40)]
        asked = asyncio.gather(*calls)
        await asyncio.sleep(0)
        all_asked.set()
        await asked
        return lifecycle.Worker(lambda stop: stop.wait(), {"end": at_once})

    with pytest.raises(lifecycle.UnexpectedExit):
        await lifecycle.run_until_stopped(connect, Config(), "env-0", asyncio.Event())
    assert len(threads) <= 5


async def test_a_start_succeeds_or_fails_or_a_stop_cancels_and_cleans_it_up():
    stop = asyncio.Event()

    async def start() -> str:
        return "started"

    assert await lifecycle.cancel_on_stop(stop, start()) == "started"
    with pytest.raises(OSError, match="disk"):
        await lifecycle.cancel_on_stop(stop, broken())
    stop, cleaned = asyncio.Event(), asyncio.Event()

    async def start() -> str:
        stop.set()
        try:
            await for_ever()
        finally:
            cleaned.set()
        return "started"

    assert await lifecycle.cancel_on_stop(stop, start()) is None
    assert cleaned.is_set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
async def test_signals_ask_to_stop(number):
    signal.signal(number, signal.SIG_DFL)  # a shell's background processes ignore some
    stop = lifecycle.stop_on_signals()
    os.kill(os.getpid(), number)
    async with asyncio.timeout(60):
        await stop.wait()


def test_a_process_that_ignores_the_end_of_its_terminal_goes_on():
    """As under ``nohup``."""
    before = {one: signal.getsignal(one) for one in (signal.SIGHUP, signal.SIGQUIT)}
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    try:
        assert signal.SIGHUP not in stop_signals() and signal.SIGQUIT in stop_signals()
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def test_the_collector_leaves_alone_what_is_there_and_looks_less_often():
    before = gc.get_threshold()
    try:
        lifecycle.freeze_gc()
        assert gc.get_freeze_count() > 1000
        assert gc.get_threshold() == lifecycle.GC_THRESHOLDS
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
