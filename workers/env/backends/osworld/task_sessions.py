"""What a task is on a machine: how it is set up there, when it is over, and its reward."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

from dart_streams.actions import Action
from dart_streams.config.tasks import Task
from dart_streams.deadline import Deadline
from dart_streams.errors import ConfigError
from workers.env.backends.desktop.families import problem_of
from workers.env.backends.osworld import tasks
from workers.env.backends.osworld.family_session import FamilyTaskSession
from workers.env.backends.osworld.machine import Machine
from workers.env.backends.osworld.osworld_session import OsworldTaskSession, TaskResources
from workers.env.environment import EnvironmentFault


class TaskSession(Protocol):
    """One task, for one episode. Each call raises EnvironmentFault if the machine fails, or the deadline passes."""

    instruction: str
    giving_up: float
    """The reward of an episode that the policy ends by ``call_user``."""
    start_is_scored: bool
    """Whether the untouched start state is to be scored before the task is first played."""

    async def set_up(self, machine: Machine, deadline: Deadline) -> None:
        """Bring a fresh machine into the task's start state."""

    async def is_over(self, machine: Machine, deadline: Deadline) -> bool:
        """Return whether the task has ended by itself, without changing anything."""

    async def evaluate(self, machine: Machine, deadline: Deadline) -> float:
        """Return the reward of the present state, in [0, 1]."""

    def demonstrate(self, machine: Machine, deadline_s: float) -> AsyncIterator[Action]:
        """Yield the oracle's actions; one without an oracle raises EnvironmentFault."""

    async def close(self) -> None:
        """Free what the episode holds beside its machine; never raises."""


class TaskSessions:
    """What tasks are: ``app/id`` is OSWorld's, if its task files are at hand; any other page is a small family."""

    def __init__(self) -> None:
        self.examples: Path | None = None
        self.shared: TaskResources | None = None

    def of(self, task: Task) -> TaskSession:
        """Return what a task is; raise EnvironmentFault if there is no such task, or its file cannot be used."""
        if not is_osworld_page(task.page):
            return FamilyTaskSession(problem_of(task.page, task.seed))
        if self.examples is None or self.shared is None:
            raise EnvironmentFault(f"{task.page}: the worker started without a task set that has tasks of OSWorld")
        try:
            return OsworldTaskSession(tasks.load(self.examples, task.page), self.shared)
        except ConfigError as error:
            raise EnvironmentFault(str(error)) from None


def is_osworld_page(page: str) -> bool:
    """Return whether a page names a task of OSWorld."""
    return "/" in page
