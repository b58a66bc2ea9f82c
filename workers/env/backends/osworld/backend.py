"""The ``osworld`` environment: tasks on machines that serve OSWorld's HTTP contract, wherever they are."""

from pathlib import Path

import structlog

from dart_streams.config import Config, Osworld, tasks
from dart_streams.config.tasks import OsworldTasks, Task
from dart_streams.errors import ConfigError, ServiceUnavailable
from workers.env.backends.osworld.environment import OsworldEnvironment
from workers.env.backends.osworld.mirror import Mirror
from workers.env.backends.osworld.osworld_session import TaskResources
from workers.env.backends.osworld.providers import provider_of
from workers.env.backends.osworld.sidecar import EvaluatorSidecar
from workers.env.backends.osworld.start_states import StartStates
from workers.env.backends.osworld.task_sessions import TaskSessions, is_osworld_page
from workers.env.backends.osworld.tasks import load_all

log = structlog.get_logger()


class OsworldBackend:
    """Makes an environment for each episode; its machine is leased with its reset."""

    def __init__(self, config: Config) -> None:
        self.settings = config.env.osworld
        self.tasks_file = Path(config.tasks.file)
        self.provider = provider_of(self.settings)
        self.assignments = TaskSessions()
        self.starts = StartStates()
        self.evaluators: EvaluatorSidecar | None = None

    async def start(self) -> None:
        """Look for what tasks of OSWorld need, if the task set has any: machines and evaluators start when needed.

        Raises ConfigError for folders that are not there, ServiceUnavailable without the evaluators' environment.
        """
        file = tasks.task_file(self.tasks_file)
        pages = [page.page for page in file.all_pages(self.tasks_file.parent) if is_osworld_page(page.page)]
        if not pages:
            return
        self.assignments.examples = (file.osworld or OsworldTasks()).examples(self.tasks_file.parent)
        for task in load_all(self.assignments.examples, pages)[1]:
            log.warning("a task cannot be played: each episode of it is a fault", task=task.page, reason=task.reason)
        mirror = mirror_of(self.settings)
        self.evaluators = EvaluatorSidecar()
        if not self.evaluators.python.exists():
            raise ServiceUnavailable("tasks of OSWorld need their evaluators: run `make osworld`")
        ours = bool(self.settings.lease_url)
        self.assignments.shared = TaskResources(mirror, self.evaluators, ours)

    async def open(self, task: Task) -> OsworldEnvironment:
        """Return an environment that has no machine yet."""
        return OsworldEnvironment(self.settings, self.provider, self.assignments.of, self.starts)

    async def stop(self) -> None:
        """End the evaluators; each episode gives its machine back by itself."""
        if self.evaluators is not None:
            await self.evaluators.stop()


def mirror_of(settings: Osworld) -> Mirror:
    """Return the configured mirror; raise ConfigError if none is named, or it is no folder."""
    named = settings.mirror_folder
    if not named or not Path(named).is_dir():
        raise ConfigError(
            f"env.osworld.mirror_folder: {f'no folder {named}' if named else 'name the folder'} "
            "of the files of OSWorld's tasks: `dart-streams osworld mirror` says how to fill it"
        )
    return Mirror(Path(named))
