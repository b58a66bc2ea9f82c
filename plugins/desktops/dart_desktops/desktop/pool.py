"""Pool of sandboxes; one that had a fault, or has served many episodes, is replaced."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import structlog

from dart_desktops.desktop.offers import ACCEPT
from dart_desktops.desktop.problem import Problem
from dart_desktops.desktop.sandbox import Sandbox
from dart_streams.background import cancel_tasks
from workers.env import metrics
from workers.env.environment import EnvironmentFault

EPISODES = 200
"""Maximum number of episodes of a sandbox, which bounds its server's memory."""
CONCURRENT_STARTS = 2
"""Maximum number of concurrent starts: more would only delay each other."""
FAILURES = 3
"""Consecutive failures after which starts are delayed."""
REST_S = 1.0
"""First delay; each further failure doubles it."""
LONGEST_REST_S = 30.0

log = structlog.get_logger()


class DesktopPool:
    """Sandboxes of one screen size, of which at most ``spare`` free ones are kept."""

    def __init__(self, width: int, height: int, call_timeout_s: float, spare: int, offers_calls: bool = False) -> None:
        self.size = width, height
        self.offers_calls = offers_calls
        """Whether sessions offer functions."""
        self.call_timeout_s = call_timeout_s
        self.spare = spare
        self.base: Mapping[str, Any] = {}
        """Screen and accessibility for which free sandboxes are prepared: those of the last task."""
        self._free: list[Sandbox] = []
        self._preparing: dict[Sandbox, asyncio.Task[None]] = {}
        self._taken: set[Sandbox] = set()
        self._episodes: dict[Sandbox, int] = {}
        self._starting = asyncio.Semaphore(CONCURRENT_STARTS)
        self._failed = 0

    def session(self, problem: Problem) -> dict[str, Any]:
        """Return the arguments of the server's ``session`` for a task."""
        return problem.session(self.size, *([ACCEPT] if self.offers_calls and problem.office else []))

    async def take(self) -> Sandbox:
        """Return a sandbox for one episode, a new one if none is free; raise EnvironmentFault if it does not start."""
        sandbox = None
        while self._free and sandbox is None:
            sandbox = self._free.pop(0)
            if not await self._prepared(sandbox):
                await self._end(sandbox)
                sandbox = None
        if sandbox is None:
            sandbox = await self._start()
        self._taken.add(sandbox)
        self._episodes[sandbox] = self._episodes.get(sandbox, 0) + 1
        return sandbox

    async def give_back(self, sandbox: Sandbox, faulty: bool) -> None:
        """Prepare a sandbox for the next episode, or end it; never raises. If cancelled, :meth:`stop` ends it."""
        self._failed = self._failed + 1 if faulty else 0
        fit = sandbox.alive and not faulty and self._episodes.get(sandbox, 0) < EPISODES
        if fit and len(self._free) < self.spare:
            self._taken.discard(sandbox)
            self._free.append(sandbox)
            self._preparing[sandbox] = asyncio.create_task(self._prepare(sandbox))
        else:
            await self._end(sandbox)
            self._taken.discard(sandbox)

    async def stop(self) -> None:
        """End all sandboxes."""
        ending, self._free, self._taken = [*self._free, *self._taken], [], set()
        await cancel_tasks(*self._preparing.values())
        self._preparing.clear()
        await asyncio.gather(*(sandbox.stop() for sandbox in ending))

    async def _prepare(self, sandbox: Sandbox) -> None:
        async with self._starting:
            await sandbox.request("POST", "prepare", self.base)

    async def _prepared(self, sandbox: Sandbox) -> bool:
        """Wait until a sandbox is prepared; return whether it is usable."""
        try:
            await self._preparing.pop(sandbox)
        except EnvironmentFault:
            return False
        except BaseException:
            await asyncio.shield(self._end(sandbox))
            raise
        return sandbox.alive

    async def _end(self, sandbox: Sandbox) -> None:
        self._episodes.pop(sandbox, None)
        await sandbox.stop()

    async def _start(self) -> Sandbox:
        if wait_s := rest_s(self._failed):
            log.warning("start of desktops delayed", reason=f"{self._failed} failures in a row", delay_s=wait_s)
            await asyncio.sleep(wait_s)
        async with self._starting:
            sandbox = Sandbox(*self.size, self.call_timeout_s)
            try:
                await sandbox.start()
                metrics.sandboxes_started.add(1)
            except BaseException as error:
                self._failed += isinstance(error, EnvironmentFault)
                with contextlib.suppress(EnvironmentFault):
                    await asyncio.shield(sandbox.stop())
                if isinstance(error, EnvironmentFault):
                    log.warning("sandbox not started", reason=str(error))
                raise
            return sandbox


def rest_s(failed: int) -> float:
    """Return the delay of a start after ``failed`` consecutive failures."""
    return 0.0 if failed < FAILURES else min(REST_S * 2 ** (failed - FAILURES), LONGEST_REST_S)
