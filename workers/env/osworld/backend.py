"""The ``osworld`` environment: tasks on machines that serve OSWorld's HTTP contract, wherever they are."""

from dart_streams.config import Config
from dart_streams.tasks import Task
from workers.env.osworld.assignments import assignment_of
from workers.env.osworld.environment import OsworldEnvironment
from workers.env.osworld.providers import provider_of


class OsworldBackend:
    """Makes an environment for each episode; its machine is leased with its reset."""

    def __init__(self, config: Config) -> None:
        self.settings = config.env.osworld
        self.provider = provider_of(self.settings)

    async def start(self) -> None:
        """There is nothing to start: a machine is asked for when an episode needs one."""

    async def open(self, task: Task) -> OsworldEnvironment:
        """Return an environment that has no machine yet."""
        return OsworldEnvironment(self.settings, self.provider, assignment_of)

    async def stop(self) -> None:
        """There is nothing to stop: each episode gives its machine back."""
