"""The ``desktop`` environment: small tasks on real X applications, each desktop in a sandbox of its own."""

import structlog

from dart_streams.config import Config
from dart_streams.tasks import Task
from workers.env.desktop import limits
from workers.env.desktop.environment import DesktopEnvironment
from workers.env.desktop.families import problem_of
from workers.env.desktop.pool import DesktopPool
from workers.env.desktop.sandbox import require_for, require_programs, sweep

log = structlog.get_logger()


class DesktopBackend:
    """Makes an environment of a pooled desktop for each episode."""

    def __init__(self, config: Config) -> None:
        self.settings = config.env.desktop
        self.pool = DesktopPool(
            self.settings.width, self.settings.height, self.settings.call_timeout_s, spare=config.env.slots
        )

    async def start(self) -> None:
        """Remove what a killed worker left; raise ServiceUnavailable with what to run if a program is missing."""
        require_programs()
        sweep()
        group = limits.make()
        if not group.bounded:
            log.warning("desktops are bounded in their folders only", reason="no control group may be made here")
        await group.remove()

    async def open(self, task: Task) -> DesktopEnvironment:
        """Return a desktop that no other episode has.

        Raises EnvironmentFault if it does not start, or lacks what the task needs.
        """
        require_for(problem_of(task.page, task.seed))
        return DesktopEnvironment(self.pool, await self.pool.take(), self.settings.last_screen)

    async def stop(self) -> None:
        """End all desktops."""
        await self.pool.stop()
