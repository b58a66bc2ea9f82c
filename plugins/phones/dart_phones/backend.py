"""The ``phone`` backend: small tasks on Android applications, a process a phone."""

import asyncio

from dart_phones.environment import PhoneEnvironment
from dart_phones.families import problem_of
from dart_phones.installation import ensure_built
from dart_phones.pool import PhonePool
from dart_phones.process import PREFIX
from dart_streams.config import Config
from dart_streams.config.tasks import Task
from dart_streams.socket_folder import remove_abandoned


class PhoneBackend:
    """Makes an environment of a pooled phone for each episode."""

    def __init__(self, config: Config) -> None:
        self.settings = config.env.phone
        self.pool = PhonePool(self.settings, config.env.slots)

    async def start(self) -> None:
        """Remove the remains of killed workers, build the applications if their sources changed, and start phones.

        Raises ServiceUnavailable if phones are not installed.
        """
        await asyncio.to_thread(remove_abandoned, PREFIX)
        await asyncio.to_thread(ensure_built)
        self.pool.start_ahead()

    async def open(self, task: Task) -> PhoneEnvironment:
        """Return a phone for one episode; raise EnvironmentFault for an unknown task, or if it does not start."""
        problem_of(task.page, task.seed)
        return PhoneEnvironment(self.pool, await self.pool.take(), self.settings)

    async def stop(self) -> None:
        """End all phones."""
        await self.pool.stop()
