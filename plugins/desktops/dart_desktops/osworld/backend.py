"""The ``osworld`` environment: tasks on machines that serve OSWorld's HTTP API, wherever they are."""

import asyncio
import os
from pathlib import Path

import structlog

from dart_desktops.desktop.families import problem_of
from dart_desktops.osworld.environment import OsworldEnvironment, StartStates, TaskSession
from dart_desktops.osworld.family_session import FamilyTaskSession
from dart_desktops.osworld.mirror import Mirror, needed_urls
from dart_desktops.osworld.osworld_session import OsworldTaskSession, TaskResources
from dart_desktops.osworld.pages import WebPages
from dart_desktops.osworld.providers import provider_of
from dart_desktops.osworld.sidecar import EvaluatorSidecar
from dart_desktops.osworld.tasks import load, load_all
from dart_streams.config import Config, Osworld, tasks
from dart_streams.config.tasks import OsworldTasks, Task
from dart_streams.errors import ConfigError, ServiceUnavailable
from workers.env.environment import EnvironmentFault

log = structlog.get_logger()


class OsworldBackend:
    """Makes an environment for each episode; its machine is leased with its reset."""

    def __init__(self, config: Config) -> None:
        self.settings = config.env.osworld
        self.tasks_file = Path(config.tasks.file)
        self.provider = provider_of(self.settings)
        self.starts = StartStates()
        self.examples: Path | None = None
        self.shared: TaskResources | None = None

    async def start(self) -> None:
        """Check the task set and the files that its OSWorld tasks need; machines and evaluators start on demand.

        Raises ConfigError for a missing folder, ServiceUnavailable without the evaluators' environment.
        """
        file = tasks.task_file(self.tasks_file)
        pages = [page.page for page in file.all_pages(self.tasks_file.parent) if is_osworld_page(page.page)]
        if not pages:
            return
        self.examples = (file.osworld or OsworldTasks()).examples(self.tasks_file.parent)
        usable, unusable = load_all(self.examples, pages)
        for task in unusable:
            log.warning("a task cannot be played: each episode of it is a fault", task=task.page, reason=task.reason)
        mirror = mirror_of(self.settings, needed=any(map(needed_urls, usable)))
        evaluators = EvaluatorSidecar(checkout=self.examples.parent)
        pages_of_web = await asyncio.to_thread(web_pages_of, self.settings)
        self.shared = TaskResources(mirror, evaluators, ours=bool(self.settings.lease_url), pages=pages_of_web)
        if not evaluators.python.exists():
            raise ServiceUnavailable("tasks of OSWorld need their evaluators: run `make osworld`")

    async def open(self, task: Task) -> OsworldEnvironment:
        """Return an environment that has no machine yet."""
        return OsworldEnvironment(self.settings, self.provider, self.session_of, self.starts)

    def session_of(self, task: Task) -> TaskSession:
        """Return the session of a task: ``app/id`` is one of OSWorld, any other page a desktop family.

        Raises EnvironmentFault if there is no such task, or its file cannot be used.
        """
        if not is_osworld_page(task.page):
            problem = problem_of(task.page, task.seed)
            if problem.phone:
                raise EnvironmentFault(f'{task.page}: a phone\'s task needs `env.backend = "desktop"`')
            return FamilyTaskSession(problem)
        if self.examples is None or self.shared is None:
            raise EnvironmentFault(f"{task.page}: the worker started without a task set that has tasks of OSWorld")
        try:
            return OsworldTaskSession(load(self.examples, task.page), self.shared)
        except ConfigError as error:
            raise EnvironmentFault(str(error)) from None

    async def stop(self) -> None:
        """Stop the evaluators; each episode gives its machine back itself."""
        if self.shared is not None:
            await self.shared.evaluators.stop()


def is_osworld_page(page: str) -> bool:
    """Return whether a page names a task of OSWorld."""
    return "/" in page


def mirror_of(settings: Osworld, *, needed: bool) -> Mirror:
    """Return the configured mirror; raise ConfigError if it is ``needed``, but not named or no folder."""
    folder = settings.mirror_folder
    if needed and not Path(folder or os.devnull).is_dir():
        raise ConfigError(
            f"env.osworld.mirror_folder: {f'no folder {folder}' if folder else 'name the folder'} "
            "of the files of OSWorld's tasks: `dart-streams osworld mirror` says how to fill it"
        )
    return Mirror(Path(folder))


def web_pages_of(settings: Osworld) -> WebPages | None:
    """Return the configured recordings of web pages, None without; raise ConfigError for an unusable folder."""
    if not settings.pages_folder:
        return None
    if not settings.lease_url:
        raise ConfigError("env.osworld.pages_folder: only desktops of a lease server (lease_url) replay web pages")
    return WebPages(Path(settings.pages_folder))
