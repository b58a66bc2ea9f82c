"""What a task is on a machine: how it is set up there, when it is over, and its reward."""

from collections.abc import AsyncIterator
from typing import Protocol

from dart_streams.actions import Action
from dart_streams.deadline import Deadline
from dart_streams.tasks import Task
from workers.env.desktop.families import problem_of
from workers.env.osworld.family import FamilyAssignment
from workers.env.osworld.machine import Machine


class Assignment(Protocol):
    """One task, for one episode. Each call raises EnvironmentFault if the machine fails, or the deadline passes."""

    instruction: str

    async def set_up(self, machine: Machine, deadline: Deadline) -> None:
        """Bring a fresh machine into the task's start state."""

    async def is_over(self, machine: Machine, deadline: Deadline) -> bool:
        """Return whether the task has ended by itself, without changing anything."""

    async def evaluate(self, machine: Machine, deadline: Deadline) -> float:
        """Return the reward of the present state, in [0, 1]."""

    def demonstrate(self, machine: Machine, deadline_s: float) -> AsyncIterator[Action]:
        """Yield the oracle's actions; one without an oracle raises EnvironmentFault."""


def assignment_of(task: Task) -> Assignment:
    """Return what a task is: one of the small families, which any desktop with their applications can do.

    Raises EnvironmentFault if there is no such task.
    """
    return FamilyAssignment(problem_of(task.page, task.seed))
