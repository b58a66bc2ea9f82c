"""``dart-streams`` in a process whose environments are disturbed: ``disturbed_env.py SETTINGS COMMAND…``.

SETTINGS is JSON. Calls of any backend fail with the share ``rate``, each in one of the ways of ``ways`` (by default
``raises``, ``nan`` and ``hangs``); and each step of the task ``lethal`` ends the process as a C library's crash does.
``healthy_s`` takes the place of the time after which a worker plays suspects.
"""

import asyncio
import json
import math
import os
import random
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from dart_streams.actions import Action
from dart_streams.config.tasks import Task

WAYS = ("raises", "nan", "hangs")
ERRORS = (ValueError, KeyError, SystemExit, RecursionError, asyncio.CancelledError)


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The kinds of disturbances and their rates."""

    rate: float = 0.0
    ways: tuple[str, ...] = WAYS
    lethal: str = ""
    healthy_s: float | None = None


class DisturbedBackend:
    """A backend whose environments are disturbed; all else is the real one's."""

    def __init__(self, backend: Any, settings: Settings) -> None:
        self.backend = backend
        self.settings = settings

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    async def open(self, task: Task) -> Any:
        opened = await self.backend.open(task)
        kind = DisturbedOracle if hasattr(opened, "demonstrate") else DisturbedEnvironment
        return kind(opened, task, self.settings)


class DisturbedEnvironment:
    def __init__(self, environment: Any, task: Task, settings: Settings) -> None:
        self.environment = environment
        self.task = task
        self.settings = settings

    async def disturbed(self, value: Any) -> Any:
        if random.random() >= self.settings.rate:
            return value
        match random.choice(self.settings.ways):
            case "raises":
                raise random.choice(ERRORS)("disturbed")
            case "nan":
                return math.nan
            case _:
                await asyncio.sleep(1e9)

    async def reset(self, task: Task) -> Any:
        return await self.disturbed(await self.environment.reset(task))

    async def step(self, action: Action, action_id: str, last: bool = False) -> Any:
        if self.task.task_id == self.settings.lethal:
            os._exit(139)
        return await self.disturbed(await self.environment.step(action, action_id, last))

    async def evaluate(self) -> Any:
        return await self.disturbed(await self.environment.evaluate())

    async def close(self) -> None:
        await self.environment.close()


class DisturbedOracle(DisturbedEnvironment):
    """A disturbed environment that can demonstrate its task."""

    async def demonstrate(self, task: Task) -> AsyncIterator[Any]:
        async for action in self.environment.demonstrate(task):
            yield await self.disturbed(action)


def disturb(settings: Settings) -> None:
    """Disturb the environments of this process."""
    from workers.env import lethal_orders, main

    usual: Callable[[Any], Any] = main.backend_of
    main.backend_of = lambda config: DisturbedBackend(usual(config), settings)
    if settings.healthy_s is not None:
        lethal_orders.HEALTHY_S = settings.healthy_s


if __name__ == "__main__":
    from console.cli.main import main as program

    disturb(msgspec.convert(json.loads(sys.argv[1]), Settings))
    # A supervisor gives the program's path as well.
    sys.argv = ["dart-streams", *(sys.argv[3:] if sys.argv[2].endswith("/dart-streams") else sys.argv[2:])]
    program()
