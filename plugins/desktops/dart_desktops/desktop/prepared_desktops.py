"""Desktops that are prepared ahead, each with the session of a task whose order is known."""

import asyncio
import contextlib
from typing import NamedTuple

from dart_desktops.desktop.families import problem_of
from dart_desktops.desktop.pool import DesktopPool
from dart_desktops.desktop.sandbox import Sandbox, require_for
from dart_streams.config.tasks import Task
from workers.env.environment import EnvironmentFault


class PreparedDesktop(NamedTuple):
    """A desktop in or after preparation for a task."""

    task_id: str
    preparation: asyncio.Task[Sandbox]
    claims: int
    """Claims before it was expected."""


class PreparedDesktops:
    """Prepared desktops of the pool, for at most ``limit`` waiting orders and those that ``slots`` have just taken.

    A slot takes an order before it claims the desktop, and the next order is expected meanwhile. A desktop is given
    back if it was not claimed in its turn, as its order was rejected.
    """

    def __init__(self, pool: DesktopPool, limit: int, slots: int) -> None:
        self.pool = pool
        self.limit = limit
        self.most = limit + slots
        self._claims = 0
        self._spares: list[PreparedDesktop] = []
        self._ending: set[asyncio.Task[None]] = set()

    def expect(self, task: Task) -> None:
        """Prepare a desktop for a future episode of ``task``."""
        if not self.limit:
            return
        while self._spares and (len(self._spares) >= self.most or self._claims - self._spares[0].claims > self.most):
            self._discard(self._spares.pop(0))
        preparation = asyncio.create_task(self._prepare(task))
        self._spares.append(PreparedDesktop(task.task_id, preparation, self._claims))

    async def claim(self, task: Task) -> Sandbox | None:
        """Wait for a desktop that is prepared for the task; return None if there is none, or it failed."""
        self._claims += 1
        spare = next((spare for spare in self._spares if spare.task_id == task.task_id), None)
        if spare is None:
            return None
        self._spares.remove(spare)
        try:
            sandbox = await asyncio.shield(spare.preparation)
        except EnvironmentFault:
            return None
        except asyncio.CancelledError:
            self._discard(spare)
            raise
        if sandbox.alive:
            return sandbox
        await self.pool.give_back(sandbox, faulty=True)
        return None

    async def prepared(self) -> None:
        """Wait until all desktops are prepared or have failed."""
        await asyncio.gather(*(spare.preparation for spare in self._spares), return_exceptions=True)

    async def stop(self) -> None:
        """Give all desktops back."""
        while self._spares:
            self._discard(self._spares.pop())
        await asyncio.gather(*self._ending)

    async def _prepare(self, task: Task) -> Sandbox:
        problem = problem_of(task.page, task.seed)
        require_for(problem)
        sandbox = await self.pool.take()
        try:
            await sandbox.request("POST", "session", self.pool.session(problem))
        except BaseException:
            await asyncio.shield(self.pool.give_back(sandbox, faulty=True))
            raise
        return sandbox

    def _discard(self, spare: PreparedDesktop) -> None:
        ending = asyncio.create_task(self._end(spare))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _end(self, spare: PreparedDesktop) -> None:
        spare.preparation.cancel()
        with contextlib.suppress(EnvironmentFault, asyncio.CancelledError):
            sandbox = await spare.preparation
            await self.pool.give_back(sandbox, faulty=False)
