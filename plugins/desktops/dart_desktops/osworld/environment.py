"""One episode on a leased machine: its task is set up there, and each action is a program that it runs."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from http import HTTPStatus
from typing import Protocol

import msgspec
import structlog

from dart_desktops.osworld.machine import Machine, run_command
from dart_desktops.osworld.providers import HeldMachine, MachineProvider
from dart_desktops.osworld.pyautogui_programs import build_program
from dart_desktops.osworld.settling import wait_stable
from dart_desktops.osworld.sidecar import UnreadableResult
from dart_streams.actions import Action
from dart_streams.config import Osworld
from dart_streams.config.tasks import Task
from dart_streams.deadline import Deadline
from workers.env import metrics
from workers.env.backends.connection import StatusFault
from workers.env.environment import EnvironmentFault, Screen, screen_of

POLL_INTERVAL_S = 0.5
STABLE_S = 0.1
"""Time without a change after which a screen is stable."""

log = structlog.get_logger()


class TaskSession(Protocol):
    """One task in one episode. Each call raises EnvironmentFault if the machine fails or the deadline passes."""

    instruction: str
    giving_up: float = 0.0
    """Reward of an episode that the policy ends by ``call_user``."""
    start_is_scored: bool = False
    """Whether the untouched start state is scored before the task is first played."""

    async def set_up(self, machine: Machine, deadline: Deadline) -> None:
        """Bring a fresh machine into the task's start state."""

    async def is_over(self, machine: Machine, deadline: Deadline) -> bool:
        """Return whether the task has ended by itself; by default only the policy or the step limit ends it."""
        return False

    async def evaluate(self, machine: Machine, deadline: Deadline) -> float:
        """Return the reward of the present state, in [0, 1]."""

    def demonstrate(self, machine: Machine, deadline_s: float) -> AsyncIterator[Action]:
        """Yield the oracle's actions; raise EnvironmentFault without an oracle."""

    async def close(self) -> None:
        """Free the resources of the episode; never raises."""
        return


class StartStates:
    """Scores of untouched start states; each is found once, on a machine that is used for nothing else."""

    def __init__(self) -> None:
        self._scores: dict[str, float] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def require_unsolved(self, page: str, score: Callable[[], Awaitable[float]]) -> None:
        """Raise EnvironmentFault if a task's start state is worth more than 0: such a task teaches nothing.

        ``score`` evaluates without playing; its faults are raised, and the next call tries again.
        """
        async with self._locks[page]:
            if page not in self._scores:
                self._scores[page] = await score()
        if (reward := self._scores[page]) > 0:
            raise EnvironmentFault(f"{page} is not played: its untouched start state is worth {reward:g} already")


class OsworldEnvironment:
    """One episode. A fault leaves the machine in an unknown state: it is given back and not used again."""

    def __init__(
        self,
        settings: Osworld,
        provider: MachineProvider,
        session_of: Callable[[Task], TaskSession],
        starts: StartStates | None = None,
    ) -> None:
        self.settings = settings
        self.provider = provider
        self.session_of = session_of
        self.starts = starts or StartStates()
        self._held: HeldMachine | None = None
        self._machine: Machine | None = None
        self._session: TaskSession | None = None
        self._executed: set[str] = set()

    async def reset(self, task: Task) -> Screen:
        """Set the task up on a fresh machine and return its first screen.

        The worker's first reset of a task scores its untouched start state on another machine before.
        """
        await self.close()
        session = self.session_of(task)
        if self.settings.check_start and session.start_is_scored:
            await self.starts.require_unsolved(task.page, lambda: self._untouched(task))
        return await self._begin(session)

    async def _untouched(self, task: Task) -> float:
        await self._begin(self.session_of(task))
        try:
            return await self._score()
        finally:
            await asyncio.shield(self.close())

    async def _begin(self, session: TaskSession) -> Screen:
        deadline = Deadline(self.settings.reset_timeout_s)
        self._executed.clear()
        self._held = await self.provider.acquire(deadline)
        machine = Machine(self._held.endpoint, self.settings.call_timeout_s)
        self._machine, self._session = machine, session
        async with self._or_close():
            await wait_ready(machine, deadline)
            await session.set_up(machine, deadline)
            return await self._screen(machine, session, deadline, settle=False)

    async def step(self, action: Action, action_id: str, last: bool = False) -> Screen:
        """Execute an action, given in screen pixels, by at most one request that is sent once."""
        machine, session = self._required()
        deadline = Deadline(self.settings.call_timeout_s)
        async with self._or_close():
            if action_id not in self._executed:
                self._executed.add(action_id)  # Before it is sent: it may be executed though no response comes.
                if (source := build_program(action)) is not None:
                    failure = "the action failed on the machine"
                    await run_command(machine, ["python", "-c", source], failure, deadline=deadline)
            screen = await self._screen(machine, session, deadline, settle=True)
        if self.settings.last_screen or not (last or screen.done):
            return screen
        return msgspec.structs.replace(screen, image=None)

    async def evaluate(self) -> float:
        """Return the reward of the present state, 0 for one that the policy left unreadable."""
        try:
            return await self._score()
        except UnreadableResult as found:
            log.warning("a result cannot be read: reward 0", reason=str(found))
            return 0.0

    async def _score(self) -> float:
        machine, session = self._required()
        deadline = Deadline(self.settings.reset_timeout_s)
        async with self._or_close():
            reward = await session.evaluate(machine, deadline)
        if not 0.0 <= reward <= 1.0:
            raise EnvironmentFault(f"the evaluator says {reward!r}: a reward is in [0, 1]")
        return reward

    async def give_up(self) -> float:
        """Return the reward of an episode that the policy ends by ``call_user``."""
        return self._required()[1].giving_up

    async def demonstrate(self, task: Task) -> AsyncIterator[Action]:
        """Yield the oracle's actions, each computed from the current screen."""
        machine, session = self._required()
        async with aclosing(session.demonstrate(machine, self.settings.call_timeout_s)) as actions:  # type: ignore[type-var]
            async for action in actions:
                yield action

    async def _screen(self, machine: Machine, session: TaskSession, deadline: Deadline, *, settle: bool) -> Screen:
        if settle:
            await asyncio.sleep(min(self.settings.pause_s, deadline.remaining_s))
        if settle and self.settings.settle == "still":
            image, still = await wait_stable(machine, deadline, STABLE_S, self.settings.settle_s)
            metrics.desktops_restless.add(int(not still))
        else:
            image = await machine.screenshot(deadline)
        over = await session.is_over(machine, deadline)
        return screen_of(image, session.instruction, over)

    def _required(self) -> tuple[Machine, TaskSession]:
        if self._machine is None or self._session is None:
            raise EnvironmentFault("there is no machine: it was not reset to a task, or has been given back")
        return self._machine, self._session

    @asynccontextmanager
    async def _or_close(self) -> AsyncIterator[None]:
        try:
            yield
        except BaseException:
            await asyncio.shield(self.close())
            raise

    async def close(self) -> None:
        """Give the machine back; never raises."""
        held, machine, self._held, self._machine = self._held, self._machine, None, None
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        if machine is not None:
            await machine.close()
        if held is not None:
            await held.release()


async def wait_ready(machine: Machine, deadline: Deadline) -> None:
    """Wait until a machine shows a screen; raise EnvironmentFault with its last response if it does not."""
    while True:
        try:
            await machine.screenshot(deadline)
            return
        except EnvironmentFault as fault:
            if isinstance(fault, StatusFault) and fault.status == HTTPStatus.GONE:
                raise  # The machine or its lease has ended.
            if deadline.remaining_s <= POLL_INTERVAL_S:
                raise EnvironmentFault(f"the machine is not ready: {fault}") from None
        await asyncio.sleep(POLL_INTERVAL_S)
