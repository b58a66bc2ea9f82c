"""Pages for a peer's trainer: this project's browser behind a Unix socket, one JSON line per request and answer.

``{"screens": [[page, seed], …]}`` returns instruction and first screen (PNG, base64) of each. ``{"answers": [[page,
seed, text], …]}`` plays a single-action episode of each and returns the rewards.
"""

import asyncio
import base64
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dart_streams import actions
from dart_streams.config import Config, Policy
from dart_streams.config.tasks import Task
from dart_streams.screens import smart_resize
from workers.env.backends.miniwob.backend import MiniwobBackend
from workers.env.backends.miniwob.page import MiniwobPage
from workers.env.environment import EnvironmentFault, Size, rescale

MESSAGE_BYTES = 64 * 1024 * 1024
FAULTS = 3
"""Retries of an episode after environment faults."""
T = TypeVar("T")
R = TypeVar("R")


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of the two requests."""

    screens: list[tuple[str, int]] = msgspec.field(default_factory=list)
    answers: list[tuple[str, int, str]] = msgspec.field(default_factory=list)


class PageServer:
    """Serves one connection at a time; counts ``episodes`` and ``busy_s``."""

    def __init__(self, config: Config) -> None:
        self.slots = config.env.slots
        self.policy = config.policy
        self.backend = MiniwobBackend(config)
        self.busy_s = 0.0
        self.episodes = 0

    @asynccontextmanager
    async def serving(self, socket: Path) -> AsyncIterator[None]:
        """Serve on ``socket`` while the block runs."""
        await self.backend.start()
        server = await asyncio.start_unix_server(self._serve, socket, limit=MESSAGE_BYTES)
        try:
            yield
        finally:
            server.close()
            await self.backend.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async for line in reader:
                started = time.perf_counter()
                answer = await self.answer(msgspec.json.decode(line, type=Request))
                self.busy_s += time.perf_counter() - started
                writer.write(msgspec.json.encode(answer) + b"\n")
                await writer.drain()
        finally:
            writer.close()  # The trainer ends where a request can't be answered.

    async def answer(self, request: Request) -> dict[str, list[Any]]:
        """Return the answer to a request."""
        if request.screens:
            return {"screens": await self._all(self._screen, request.screens)}
        self.episodes += len(request.answers)
        return {"rewards": await self._all(self._reward, request.answers)}

    async def _all(self, do: Callable[[T], Awaitable[R]], items: list[T]) -> list[R]:
        limit = asyncio.Semaphore(self.slots)

        async def one(item: T) -> R:
            async with limit:
                for _ in range(FAULTS):
                    with contextlib.suppress(EnvironmentFault):
                        return await do(item)
                return await do(item)

        return list(await asyncio.gather(*(one(item) for item in items)))

    async def _screen(self, asked: tuple[str, int]) -> dict[str, str]:
        task = single_step(*asked)
        page = await self.backend.open(task)
        try:
            screen = await page.reset(task)
        finally:
            await page.close()
        assert screen.image is not None
        return {"instruction": screen.instruction, "png": base64.b64encode(screen.image).decode()}

    async def _reward(self, asked: tuple[str, int, str]) -> float:
        name, seed, text = asked
        task = single_step(name, seed)
        page = await self.backend.open(task)
        try:
            screen = await page.reset(task)
            return await play_answer(page, text, (screen.width, screen.height), self.policy)
        finally:
            await page.close()


async def play_answer(page: MiniwobPage, text: str, size: Size, policy: Policy) -> float:
    """Execute an answer as the only action; return the reward in [0, 1], 0 for an unparsable answer."""
    try:
        action = actions.parse(text)
    except actions.Unparsable:
        return 0.0
    seen = smart_resize(*size, policy.min_pixels, policy.max_pixels)
    await page.step(rescale(action, seen, size), "0", last=True)
    return await page.evaluate()


def single_step(page: str, seed: int) -> Task:
    """Return a task of one action."""
    return Task(environment="miniwob", page=page, seed=seed, max_steps=1, split="train")
