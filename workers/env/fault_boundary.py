"""The boundary around environments, which may be third-party code: their errors never end the worker.

Results of calls are checked (:mod:`workers.env.returned_values`), and exceptions become an
:class:`~workers.env.environment.EnvironmentFault` that names the call. Each call is a separate task: one that ignores
its cancellation is left behind, and one that cancels itself or raises SystemExit ends nothing else.

:mod:`workers.env.lethal_orders` counts environments that end the process itself (``os._exit``, a crash in a C library);
:mod:`workers.env.blocked_loop` detects calls that block the event loop.
"""

import asyncio
import contextlib
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import structlog

from dart_streams.actions import Action
from dart_streams.config.tasks import Task
from workers.env.environment import EnvironmentBackend, EnvironmentFault, NoOracle, Preparer, Screen
from workers.env.returned_values import checked_action, checked_reward, checked_screen, printable_text

CANCEL_S = 5.0
"""Time limit for a cancelled call to end; then it is left behind."""
CLOSE_S = 60.0
"""Time limit for ``close`` at an episode's end."""
FRAMES = 8
"""Number of logged frames of a traceback, the innermost ones."""
NO_MORE = object()
"""Marks the end of a demonstration."""

log = structlog.get_logger()


class ContainedBackend:
    """A backend whose environments raise nothing but EnvironmentFault."""

    def __init__(self, backend: EnvironmentBackend) -> None:
        self.backend = backend
        self.left_behind: set[asyncio.Task[Any]] = set()
        """Running calls of ended episodes."""

    def expect(self, task: Task) -> None:
        """Let the backend prepare for a future episode of ``task``; never raises."""
        try:
            cast(Preparer, self.backend).expect(task)
        except BaseException as error:  # noqa: BLE001 - third-party code in a task of the worker
            log.warning("environment is not prepared", task=task.task_id, reason=reason_of("expect", error))

    async def call(self, name: str, make: Callable[[], Awaitable[Any]]) -> Any:
        """Return the result of a call; raise EnvironmentFault for any exception.

        Cancellation also cancels the call, which is left behind if it has not ended after :data:`CANCEL_S`.
        """
        running = asyncio.create_task(capture_outcome(make), name=f"environment: {name}")
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({running}, timeout=CANCEL_S)
            self.leave_behind(name, running)
            if name == "open":
                running.add_done_callback(self.close_opened)
            raise
        if running.cancelled():
            raise EnvironmentFault(f"{name}() was cancelled by the environment itself")
        result, error = running.result()
        if error is not None:
            raise EnvironmentFault(reason_of(name, error)) from None
        return result

    def leave_behind(self, name: str, running: asyncio.Task[Any]) -> None:
        """Keep a running call until it ends, with a warning."""
        if not running.done():
            log.warning("environment does not return", call=name, reason="it ignores that its episode has ended")
            self.left_behind.add(running)
            running.add_done_callback(self.left_behind.discard)

    def close_opened(self, opening: asyncio.Task[Any]) -> None:
        """Close the environment of a call of ``open`` that nobody waits for."""
        opened, error = (None, None) if opening.cancelled() else opening.result()
        if opened is not None and error is None:
            closing = asyncio.create_task(capture_outcome(lambda: opened.close()), name="environment: close")
            self.left_behind.add(closing)
            closing.add_done_callback(self.left_behind.discard)


class ContainedEnvironment:
    """One episode's environment, whose calls return valid results or raise EnvironmentFault."""

    def __init__(self, owner: ContainedBackend) -> None:
        self.owner = owner
        self.environment: Any = None
        self.demonstration: AsyncIterator[object] | None = None
        self.calling = ""
        """Name of the current call."""

    async def open(self, task: Task) -> None:
        """Open the environment for an episode of ``task``."""
        self.environment = await self._call("open", lambda: self.owner.backend.open(task))

    async def reset(self, task: Task) -> Screen:
        """Return the first screen."""
        value = await self._call("reset", lambda: self.environment.reset(task))
        screen = check_value("reset", checked_screen, value)
        if screen.image is None:
            raise EnvironmentFault("reset() returned a screen without an image")
        return screen

    async def step(self, action: Action, action_id: str, last: bool = False) -> Screen:
        """Return the screen after an action."""
        screen = await self._call("step", lambda: self.environment.step(action, action_id, last))
        return check_value("step", lambda value: checked_screen(value, imageless=last), screen)

    async def evaluate(self) -> float:
        """Return the reward of the present state."""
        return check_value("evaluate", checked_reward, await self._call("evaluate", self.environment.evaluate))

    async def answer(self, text: str) -> None:
        """Hand the policy's answer to an environment that takes one."""
        if await self._has("answer"):
            await self._call("answer", lambda: self.environment.answer(text))

    async def give_up(self) -> float:
        """Return the reward of an episode that ends by ``call_user``, 0 unless the environment defines it."""
        if not await self._has("give_up"):
            return 0.0
        return check_value("give_up", checked_reward, await self._call("give_up", self.environment.give_up))

    async def begin_demonstration(self, task: Task) -> None:
        """Make :meth:`next_action` yield the oracle's actions; raise NoOracle if there is none."""
        if not await self._has("demonstrate"):
            name = type(self.environment).__name__
            raise NoOracle(f"{name} has no oracle: it cannot demonstrate a task")

        async def begin() -> AsyncIterator[object]:
            return cast(AsyncIterator[object], aiter(self.environment.demonstrate(task)))

        self.demonstration = await self._call("demonstrate", begin)

    async def next_action(self) -> Action | None:
        """Return the oracle's next action, None after the last."""
        oracle = self.demonstration
        assert oracle is not None
        action = await self._call("demonstrate", lambda: anext(oracle, NO_MORE))
        return None if action is NO_MORE else check_value("demonstrate", checked_action, action)

    async def close(self) -> None:
        """Close oracle and environment, once; never raises, and takes at most :data:`CLOSE_S` for each."""
        if self.demonstration is not None and hasattr(self.demonstration, "aclose"):
            await self._end("demonstrate", self.demonstration.aclose)
        environment, self.environment, self.demonstration = self.environment, None, None
        if environment is not None:
            await self._end("close", lambda: environment.close())

    async def _call(self, name: str, make: Callable[[], Awaitable[Any]]) -> Any:
        self.calling = name
        result = await self.owner.call(name, make)
        self.calling = ""
        return result

    async def _has(self, name: str) -> bool:
        async def look() -> bool:
            return hasattr(self.environment, name)

        return bool(await self._call(name, look))

    async def _end(self, name: str, make: Callable[[], Awaitable[Any]]) -> None:
        """Make a call with a time limit; an exception is logged."""
        running = asyncio.create_task(capture_outcome(make), name=f"environment: end of {name}")
        await asyncio.wait({running}, timeout=CLOSE_S)
        self.owner.leave_behind(name, running)
        if running.done() and not running.cancelled() and (error := running.result()[1]) is not None:
            log.warning("environment was not closed", reason=reason_of(name, error))


async def capture_outcome(make: Callable[[], Awaitable[Any]]) -> tuple[Any, BaseException | None]:
    """Return the result of a call and its exception."""
    try:
        return await make(), None
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - third-party code; SystemExit would end the event loop
        return None, error


def check_value(name: str, check: Callable[[Any], Any], value: object) -> Any:
    """Return a checked value; raise EnvironmentFault that names the call.

    Access to a value may run the environment's code: properties, comparisons and conversions.
    """
    try:
        return check(value)
    except EnvironmentFault as fault:
        raise EnvironmentFault(f"{name}() {fault}") from None
    except Exception as error:  # noqa: BLE001 - a value of a third-party type
        raise EnvironmentFault(f"{name}() returned a {type(value).__name__} that cannot be read: {error!r}") from None


def reason_of(name: str, error: BaseException) -> str:
    """Return the reason of a failed call: a fault's message, or exception and location."""
    try:
        words = str(error)
    except Exception:  # noqa: BLE001 - third-party exception, whose text may fail
        words = "it has no text"
    if isinstance(error, EnvironmentFault):
        return printable_text(words) or f"{name}() raised an EnvironmentFault without words"
    reason = printable_text(f"{name}() raised {type(error).__name__}{place_of(error)}: {words}")
    # Not as exc_info: rendering the exception would run its code again, and print all of its text.
    frames = traceback.format_tb(error.__traceback__, limit=-FRAMES)
    log.warning("environment raised", reason=reason, frames=printable_text("".join(frames)))
    return reason


def place_of(error: BaseException) -> str:
    """Return file and line of an error, empty if the call itself failed in this module."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or (file := Path(trace.tb_frame.f_code.co_filename)) == Path(__file__):
        return ""
    return f" ({file.name}, line {trace.tb_lineno})"
