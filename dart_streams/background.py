"""Tasks that run beside others until they are cancelled, and bounded waits."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any


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
