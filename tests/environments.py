"""Environments of any backend, opened for one test."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from dart_streams.actions import KeyDown, MouseDown, Wait
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


SPOILED = (
    *("true", "mkdir {0}", "mkfifo {0}", "ln -s {0} {0}", "ln -s /dev/zero {0}", "head -c 3M /dev/zero >{0}"),
    *("echo >{0}; chmod 0 {0}", "mkdir {0}; chmod 0 {0}", "mkdir {0}; cd {0}; seq 3000 | xargs touch"),
    r"mkdir {0}; touch {0}/$(printf '\377') {0}/$(printf '\355\240\200')",
    "chmod 0 .",
)
"""Scripts that put something else in the place of a watched path, which was removed before."""


async def check_spoiled(environment: Any, execute: Callable[[str], Awaitable[Any]], path: str) -> None:
    """Check that a watched path that cannot be read is worth 0, and no fault of the environment."""
    assert await environment.evaluate() == 0
    for number, spoil in enumerate(SPOILED):
        await execute(f"chmod -R 700 ~; cd; rm -rf {path}; {spoil.format(path)}; true")
        await environment.step(Wait(), str(number))
        assert await environment.evaluate() == 0, spoil


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
