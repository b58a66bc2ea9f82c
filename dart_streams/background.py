"""Tasks that run beside others until they are cancelled, bounded waits, and the signals that end a process."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Coroutine
from typing import Any


def stop_signals() -> list[signal.Signals]:
    """Return the signals that end a process in order: also those of a terminal that goes, unless they are ignored.

    ``nohup`` has a process ignore them, and outlive its terminal.
    """
    gone = (signal.SIGHUP, signal.SIGQUIT)
    return [signal.SIGTERM, signal.SIGINT, *(one for one in gone if signal.getsignal(one) is not signal.SIG_IGN)]


async def cancel_tasks(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait for their ends; their errors are dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def wait_at_most(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, at most this time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def wait_first(*work: Coroutine[Any, Any, object], timeout_s: float | None = None) -> None:
    """Return when one of the coroutines has ended, or none in time, and cancel the others."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


@contextlib.asynccontextmanager
async def run_beside(*work: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """Run coroutines while the body lasts."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield
    finally:
        await cancel_tasks(*tasks)
