"""The ``desktop`` backend: small tasks on real X applications, each desktop in its own sandbox."""

import structlog

from dart_desktops.desktop import limits
from dart_desktops.desktop.environment import DesktopEnvironment
from dart_desktops.desktop.families import problem_of
from dart_desktops.desktop.pool import DesktopPool
from dart_desktops.desktop.prepared_desktops import PreparedDesktops
from dart_desktops.desktop.sandbox import require_for, require_programs, sweep
from dart_streams.config import Config
from dart_streams.config.tasks import Task
from workers.env import metrics

log = structlog.get_logger()


class DesktopBackend:
    """Makes an environment of a pooled desktop for each episode."""

    def __init__(self, config: Config) -> None:
        self.settings = config.env.desktop
        spare = config.env.slots + self.settings.spares
        size = self.settings.width, self.settings.height
        self.pool = DesktopPool(*size, self.settings.call_timeout_s, spare, self.settings.calls)
        self.spares = PreparedDesktops(self.pool, self.settings.spares, config.env.slots)

    @property
    def ahead(self) -> int:
        """Number of tasks that are useful to know ahead of their episodes."""
        return self.spares.limit

    async def start(self) -> None:
        """Remove the remains of killed workers; raise ServiceUnavailable if a program is missing."""
        require_programs()
        sweep()
        group = limits.make_group()
        if not group.bounded:
            log.warning("desktops are bounded in their folders only", reason="no control group may be made here")
        await group.remove()

    def expect(self, task: Task) -> None:
        """Prepare a desktop for a future episode of ``task``."""
        self.spares.expect(task)

    async def open(self, task: Task) -> DesktopEnvironment:
        """Return a desktop for one episode, preferably the one that was prepared for the task.

        Raises EnvironmentFault if it does not start, or a program of the task is missing.
        """
        require_for(problem_of(task.page, task.seed))
        sandbox = await self.spares.claim(task)
        metrics.desktops_prepared.add(int(sandbox is not None))
        prepared = None if sandbox is None else task
        return DesktopEnvironment(self.pool, sandbox or await self.pool.take(), self.settings.last_screen, prepared)

    async def stop(self) -> None:
        """End all desktops."""
        await self.spares.stop()
        await self.pool.stop()
