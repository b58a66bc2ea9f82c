"""Recorded episodes: what every environment of a comparison plays, click for click.

Each is played once here, half of its clicks the oracle's and half anywhere. The same problem and the same clicks have
the same reward wherever the page is the same, so a comparison can say whether all did the same work.
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
    """An episode: the page, what its random numbers start from, clicks in page pixels, and how it ended."""

    page: str
    seed: int
    clicks: tuple[tuple[int, int], ...]
    done: bool
    reward: float
    """Raw: -1 to 1, and 0 while nothing is decided."""

    @property
    def task(self) -> Task:
        """The task, of as many steps as were recorded."""
        return Task(environment="miniwob", page=self.page, seed=self.seed, max_steps=len(self.clicks), split="train")


async def record(backend: MiniwobBackend, task: Task, rollout: int) -> Play | None:
    """Play an episode; return nothing if it had a fault, or an action that is no click."""
    chance = random.Random(f"{task.task_id} {rollout}")
    clicks: list[tuple[int, int]] = []
    page = await backend.open(task)
    try:
        await page.reset(task)
        while not page.done and len(clicks) < task.max_steps:
            action = await browser_cost.next_action(page, task, chance)
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
    """Return N episodes of a task set's pages, mixed, each in a browser context of its own."""
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
    """Write episodes as JSON for the players of peers; return the file."""
    file.write_bytes(msgspec.json.encode(plays))
    return file
