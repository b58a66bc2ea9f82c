"""Plays a run with a viewer of its web page that comes and goes: see :mod:`benchmarks.watched`.

The viewer asks for what a tab on the wall asks for: the socket, each new screen, and the curves every two seconds. It
lives in the supervisor's process, so its own work counts as the page's: a browser would be on another machine.
"""

import asyncio
import contextlib
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import aiohttp
from rich.console import Console

from benchmarks import watched
from benchmarks.circle_run import bounded
from benchmarks.circle_run import session_of as plain_session
from dart_streams.clock import now_ms
from dart_streams.config import Config
from dart_streams.console.launch.processes import PAGE_FILE
from dart_streams.console.launch.session import Finish, Session, live
from dart_streams.console.launch.training_run import TrainingRun
from dart_streams.console.runs import run_folder
from dart_streams.console.runs.process_usage import USAGE_FILE, usages
from dart_streams.console.runs.run_state import RunState
from dart_streams.errors import UserError

MakeSession = Callable[[run_folder.RunFolder, Console, Finish], Session]

CURVES_S = 2.0
POLL_S = 1.0


class Viewer:
    """A tab on the wall, without the browser."""

    def __init__(self, address: str, token: str) -> None:
        self.address = address
        self.headers = {"Authorization": f"Bearer {token}"}
        self.messages = 0
        self.seen: set[str] = set()

    async def watch(self) -> None:
        """Watch until cancelled."""
        async with aiohttp.ClientSession(self.address, headers=self.headers) as client, asyncio.TaskGroup() as tasks:
            tasks.create_task(self.follow(client))
            tasks.create_task(self.curves(client))

    async def follow(self, client: aiohttp.ClientSession) -> None:
        """Take the messages, and each screen that they name for the first time."""
        async with client.ws_connect("/api/live?watch=wall") as socket:
            async for message in socket:
                self.messages += 1
                shown = {slot.get("screenshot", "") for slot in json.loads(message.data).get("slots", ())}
                for sha256 in sorted(shown - self.seen - {""}):
                    async with client.get(f"/screenshot/{sha256}") as answer:
                        await answer.read()
                        if answer.ok:
                            self.seen.add(sha256)
        raise ConnectionError("the page has closed the socket")

    async def curves(self, client: aiohttp.ClientSession) -> None:
        """Ask for the curves every two seconds."""
        while True:
            async with client.get("/api/time") as answer:
                await answer.read()
            await asyncio.sleep(CURVES_S)


class Alternation:
    """Lets a viewer come and go while a session runs; :attr:`blocks` has the blocks that were completed."""

    def __init__(self, folder: run_folder.RunFolder, block_s: float) -> None:
        self.folder = folder
        self.block_s = block_s
        self.blocks: list[watched.Block] = []

    @property
    def has_begun(self) -> bool:
        """Whether training has begun, and the page has told its address."""
        return self.folder.journal().phase("circle") is not None and (self.folder.path / PAGE_FILE).exists()

    async def run(self) -> None:
        """Alternate from the beginning of training on, until cancelled; the first block is without a viewer."""
        while not self.has_begun:  # noqa: ASYNC110 (other processes write the files)
            await asyncio.sleep(POLL_S)
        while True:
            start_ms = now_ms()
            await asyncio.sleep(self.block_s)
            self.blocks.append(watched.Block(False, start_ms, now_ms()))
            self.blocks.append(await self.watched_block())

    async def watched_block(self) -> watched.Block:
        """Watch for a block; raise what ended the viewer before."""
        page = json.loads((self.folder.path / PAGE_FILE).read_bytes())
        viewer, start_ms = Viewer(page["address"], page["token"]), now_ms()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.block_s):
                await viewer.watch()
        return watched.Block(True, start_ms, now_ms(), viewer.messages, len(viewer.seen))


def measure(base: Config, minutes: float, block_s: float, session_of: MakeSession = plain_session) -> dict[str, Any]:
    """Let a run of so many minutes be watched in every second block, and return what that cost.

    ``session_of`` makes its session.

    Raises
    ------
    UserError
        If the run fails, or has no two blocks to compare.
    """
    if minutes * 60 < 2 * block_s or block_s <= watched.SETTLED_S:
        raise UserError(
            f"a block has to be longer than {watched.SETTLED_S:g} s, which do not count, and the run than two blocks"
        )
    config = bounded(base, minutes)
    made = run_folder.create(config, Path(base.tasks.file), f"watched-{uuid.uuid4().hex[:6]}", resume=False)
    alternation = Alternation(made, block_s)
    ended: list[RunState] = []

    async def finish(run: TrainingRun) -> None:
        assert run.follower is not None
        ended.append(run.follower.progress)

    def session(log: TextIO) -> Session:
        session = session_of(made, Console(file=log), finish)
        running = session.run

        async def run() -> None:
            watching = asyncio.create_task(alternation.run(), name="viewer")
            try:
                await running()
            finally:
                if not watching.done():
                    watching.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await watching

        session.run = run  # type: ignore[method-assign]
        return session

    live(made, session)
    samples = usages(made.path / "metrics" / USAGE_FILE)
    found = [watched.measured(block, ended[0].slices, samples) for block in alternation.blocks]
    return watched.summary(found) | {"folder": str(made.path), "block_s": block_s, "settled_s": watched.SETTLED_S}
