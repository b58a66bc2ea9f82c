"""Environments of any backend, opened for one test."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from dart_streams.config.tasks import Task


@asynccontextmanager
async def opened(backend: Any, task: Task) -> AsyncIterator[tuple[Any, Any]]:
    """Yield an environment at the start of a task, and its first screen; it is closed at the end."""
    environment = await backend.open(task)
    try:
        yield environment, await environment.reset(task)
    finally:
        await environment.close()


@asynccontextmanager
async def playing(backend: Any, task: Task) -> AsyncIterator[Any]:
    """Yield an environment at the start of a task; it is closed at the end."""
    async with opened(backend, task) as (environment, _):
        yield environment
