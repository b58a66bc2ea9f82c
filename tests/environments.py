"""Environments of any backend, opened for one test."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from dart_streams.actions import KeyDown, MouseDown
from dart_streams.config.tasks import Task
from workers.env import conformance


@asynccontextmanager
async def opened(backend: Any, task: Task) -> AsyncIterator[tuple[Any, Any]]:
    """Yield an environment at the start of a task, and its first screen; it is closed at the end."""
    environment = await backend.open(task)
    try:
        yield environment, await environment.reset(task)
    finally:
        await environment.close()


async def check_oracle(environment: Any, task: Task) -> None:
    """Check at the start of a task that it is worth 0, and 1 after its oracle's actions."""
    assert await environment.evaluate() == 0
    assert await conformance.solve(environment, task)
    assert await environment.evaluate() == 1


async def check_family(backend: Any, task: Task) -> None:
    """Check a task's oracle, and that a reset brings the first screen back."""
    async with opened(backend, task) as (environment, start):
        await check_oracle(environment, task)
        assert conformance.same_screen(await environment.reset(task), start)


@asynccontextmanager
async def playing(backend: Any, task: Task) -> AsyncIterator[Any]:
    """Yield an environment at the start of a task; it is closed at the end."""
    async with opened(backend, task) as (environment, _):
        yield environment


async def check_held_ends(backend: Any, task: Task) -> None:
    """Check that keys and a button that are held at an episode's end are not held in the next one."""
    for held in (KeyDown("shift"), KeyDown("ctrl"), MouseDown(50, 100)):
        async with playing(backend, task) as environment:
            await environment.step(held, "hold")
            await environment.reset(task)
            assert await conformance.solve(environment, task)
            assert await environment.evaluate() == 1, held
