"""One episode at a machine: a lease of it, a task set up there, and a program for each action."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

from dart_streams import pictures
from dart_streams.actions import Action
from dart_streams.config import Osworld
from dart_streams.config.tasks import Task
from dart_streams.deadline import Deadline
from workers.env import metrics
from workers.env.backends.osworld.connection import MachineGone
from workers.env.backends.osworld.machine import Machine
from workers.env.backends.osworld.providers import HeldMachine, MachineProvider
from workers.env.backends.osworld.pyautogui_programs import build_program
from workers.env.backends.osworld.screen_stable import wait_stable
from workers.env.backends.osworld.start_states import StartStates
from workers.env.backends.osworld.task_sessions import TaskSession
from workers.env.environment import EnvironmentFault, Screen

T = TypeVar("T")
POLL_INTERVAL_S = 0.5
"""Between looks whether a machine has started."""
QUIET_S = 0.1
"""How long a still screen stays the same."""


class OsworldEnvironment:
    """An episode. A fault leaves the machine in an unknown state: it is given back, and nothing is sent to it again."""

    def __init__(
        self,
        settings: Osworld,
        provider: MachineProvider,
        assignment_of: Callable[[Task], TaskSession],
        starts: StartStates | None = None,
    ) -> None:
        self.settings = settings
        self.provider = provider
        self.assignment_of = assignment_of
        self.starts = starts or StartStates()
        self._held: HeldMachine | None = None
        self._machine: Machine | None = None
        self._assignment: TaskSession | None = None
        self._executed: set[str] = set()
        self._over = False

    async def reset(self, task: Task) -> Screen:
        """Take a fresh machine, set the task up on it, and return its first screen.

        A worker's first reset of a task whose start state is not known takes another one before, to score it untouched.
        """
        await self._give_back()
        assignment = self.assignment_of(task)
        if self.settings.check_start and assignment.start_is_scored:
            await self.starts.require_unsolved(task.page, lambda: self._untouched(task))
        return await self._begin(assignment)

    async def _untouched(self, task: Task) -> float:
        await self._begin(self.assignment_of(task))
        try:
            return await self.evaluate()
        finally:
            await asyncio.shield(self._give_back())

    async def _begin(self, assignment: TaskSession) -> Screen:
        deadline = Deadline(self.settings.reset_timeout_s)
        self._over = False
        self._executed.clear()
        self._held = await self.provider.acquire(deadline)
        machine = Machine(self._held.endpoint, self.settings.call_timeout_s)
        self._machine, self._assignment = machine, assignment
        await self._or_give_back(self._set_up(machine, assignment, deadline))
        return await self._or_give_back(self._screen(machine, assignment, deadline, settle=False))

    async def step(self, action: Action, action_id: str, last: bool = False) -> Screen:
        """Execute an action, given in screen pixels, with at most one request that is sent once."""
        machine, assignment = self._required()
        return await self._or_give_back(self._step(machine, assignment, action, action_id, last))

    async def evaluate(self) -> float:
        """Return the task's reward of the present state."""
        machine, assignment = self._required()
        deadline = Deadline(self.settings.reset_timeout_s)
        reward = await self._or_give_back(assignment.evaluate(machine, deadline))
        if not 0.0 <= reward <= 1.0:
            raise EnvironmentFault(f"the evaluator says {reward!r}: a reward is in [0, 1]")
        return reward

    async def give_up(self) -> float:
        """Return the reward of an episode that the policy ends by ``call_user``."""
        return self._required()[1].giving_up

    async def demonstrate(self, task: Task) -> AsyncIterator[Action]:
        """Yield the oracle's actions, each computed from what is then shown."""
        machine, assignment = self._required()
        async with aclosing(assignment.demonstrate(machine, self.settings.call_timeout_s)) as actions:  # type: ignore[type-var]
            async for action in actions:
                yield action

    async def close(self) -> None:
        """Give the machine back; never raises."""
        await self._give_back()

    async def _set_up(self, machine: Machine, assignment: TaskSession, deadline: Deadline) -> None:
        await wait_ready(machine, deadline)
        await assignment.set_up(machine, deadline)

    async def _step(
        self, machine: Machine, assignment: TaskSession, action: Action, action_id: str, last: bool
    ) -> Screen:
        deadline = Deadline(self.settings.call_timeout_s)
        if action_id not in self._executed:
            # Before it is sent: whatever becomes of the answer, it may have been carried out.
            self._executed.add(action_id)
            if (source := build_program(action)) is not None:
                ended = await machine.execute(["python", "-c", source], deadline=deadline)
                if ended["returncode"]:
                    said = ended["error"].strip().splitlines() or ["no error text"]
                    raise EnvironmentFault(f"the action failed on the machine: {said[-1][:300]}")
        screen = await self._screen(machine, assignment, deadline, settle=True)
        return screen if self.settings.last_screen or not (last or screen.done) else without_image(screen)

    async def _screen(self, machine: Machine, assignment: TaskSession, deadline: Deadline, *, settle: bool) -> Screen:
        if settle:
            await asyncio.sleep(min(self.settings.pause_s, deadline.remaining_s))
        if settle and self.settings.settle == "still":
            image, still = await wait_stable(machine, deadline, QUIET_S, self.settings.settle_s)
            metrics.desktops_restless.add(int(not still))
        else:
            image = await machine.screenshot(deadline)
        over = await assignment.is_over(machine, deadline)
        return decode_screen(image, assignment.instruction, over)

    def _required(self) -> tuple[Machine, TaskSession]:
        if self._machine is None or self._assignment is None:
            raise EnvironmentFault("there is no machine: it was not reset to a task, or has been given back")
        return self._machine, self._assignment

    async def _or_give_back(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except BaseException:
            await asyncio.shield(self._give_back())
            raise

    async def _give_back(self) -> None:
        held, machine, self._held, self._machine = self._held, self._machine, None, None
        assignment, self._assignment = self._assignment, None
        if assignment is not None:
            await assignment.close()
        if machine is not None:
            await machine.close()
        if held is not None:
            await held.release()


async def wait_ready(machine: Machine, deadline: Deadline) -> None:
    """Wait until a machine shows a screen; raise EnvironmentFault with what it last answered if it does not."""
    while True:
        try:
            await machine.screenshot(deadline)
            return
        except MachineGone:
            raise
        except EnvironmentFault as fault:
            if deadline.remaining_s <= POLL_INTERVAL_S:
                raise EnvironmentFault(f"the machine is not ready: {fault}") from None
        await asyncio.sleep(POLL_INTERVAL_S)


def decode_screen(image: bytes, instruction: str, done: bool) -> Screen:
    """Return an image with its size; raise EnvironmentFault if it cannot be read."""
    try:
        kind, width, height = pictures.facts_of(image)
    except pictures.UnusablePicture as error:
        raise EnvironmentFault(f"the screen is no screenshot: {error}") from None
    return Screen(image=image, media_type=kind, width=width, height=height, instruction=instruction, done=done)


def without_image(screen: Screen) -> Screen:
    """Return a screen whose image is not wanted."""
    return Screen(
        image=None,
        media_type=screen.media_type,
        width=screen.width,
        height=screen.height,
        instruction=screen.instruction,
        done=screen.done,
    )
