"""Tasks that run beside others until they are cancelled."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any


async def cancel_tasks(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait for their ends; their errors are dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def run_beside(*work: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """Run coroutines while the body lasts."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield
    finally:
        await cancel_tasks(*tasks)
