"""Recorded episodes that all environments of a comparison play click for click.

Half of the clicks are the oracle's, half random. Equal clicks on equal problems have equal rewards, which shows that
all did the same work.
"""

import asyncio
import random
from pathlib import Path

import msgspec

from benchmarks import browser_cost
from dart_streams.actions import Click
from dart_streams.config import Config
from dart_streams.config.tasks import Task, TaskSet
from workers.env.backends.miniwob.backend import MiniwobBackend
from workers.env.environment import EnvironmentFault


class Play(msgspec.Struct, frozen=True):
    """An episode: page, seed, clicks in page pixels, result."""

    page: str
    seed: int
    clicks: tuple[tuple[int, int], ...]
    done: bool
    reward: float
    """Raw reward, -1 to 1; 0 while undecided."""

    @property
    def task(self) -> Task:
        """The task, with as many steps as recorded."""
        return Task(environment="miniwob", page=self.page, seed=self.seed, max_steps=len(self.clicks), split="train")


async def record(backend: MiniwobBackend, task: Task, rollout: int) -> Play | None:
    """Play an episode; return None after a fault or an action other than a click."""
    rng = random.Random(f"{task.task_id} {rollout}")
    clicks: list[tuple[int, int]] = []
    page = await backend.open(task)
    try:
        await page.reset(task)
        while not page.done and len(clicks) < task.max_steps:
            action = await browser_cost.next_action(page, task, rng)
            if not isinstance(action, Click):
                return None
            await page.step(action, str(len(clicks)))
            clicks.append((action.x, action.y))
        return Play(task.page, task.seed, tuple(clicks), page.done, float(page.raw_reward))
    except EnvironmentFault:
        return None
    finally:
        await page.close()


async def record_plays(config: Config, tasks: TaskSet, count: int) -> list[Play]:
    """Return N mixed episodes of a task set, each in its own browser context."""
    own = msgspec.structs.replace(config.env.miniwob, isolation="context")
    backend = MiniwobBackend(msgspec.structs.replace(config, env=msgspec.structs.replace(config.env, miniwob=own)))
    chosen = [task for page in tasks.pages for task in page.tasks("train")]
    random.Random(0).shuffle(chosen)
    await backend.start()
    limit = asyncio.Semaphore(config.env.slots)

    async def one(task: Task) -> Play | None:
        async with limit:
            return await record(backend, task, 0)

    try:
        found = await asyncio.gather(*(one(task) for task in chosen[:count]))
    finally:
        await backend.stop()
    return [play for play in found if play is not None]


def write(plays: list[Play], file: Path) -> Path:
    """Write episodes as JSON; return the file."""
    file.write_bytes(msgspec.json.encode(plays))
    return file
