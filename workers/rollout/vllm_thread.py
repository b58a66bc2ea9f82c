"""The thread on which vLLM runs, and how the event loop talks to it: commands in between two steps, results out."""

import asyncio
import contextlib
import itertools
import queue
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from dart_streams.policy.rendering import Prompt
from topics.values import Sampling
from workers.rollout.engine import EngineDead, EngineFault
from workers.rollout.patches import Patches
from workers.rollout.vllm_core import Core, Made

T = TypeVar("T")
Command = Callable[[Core], None]


class EngineThread:
    """Continuous batching: every request that has come in by the next step is part of it.

    An unexpected error in the engine ends the thread and fails all that wait for it with
    :class:`~workers.rollout.engine.EngineDead`: half-loaded weights or lost requests are never papered over.
    """

    def __init__(self, build: Callable[[], Core]) -> None:
        self.build = build
        self.loop = asyncio.get_running_loop()
        self.dead: EngineDead | None = None
        self._keys = map(str, itertools.count())
        self._inbox: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._answers: dict[str, asyncio.Future[Made]] = {}
        self._calls: set[asyncio.Future] = set()
        self._ended = asyncio.Event()
        # A daemon, so that a start that hangs cannot keep a process alive that was told to stop.
        self._thread = threading.Thread(target=self._run, name="vllm", daemon=True)
        self._thread.start()

    async def generate(self, prompt: Prompt, images: Sequence[Patches], sampling: Sampling) -> Made:
        """Answer a prompt; when cancelled, the engine forgets it.

        Raises
        ------
        EngineFault
            If the engine refuses it, for instance as too long.
        EngineDead
            If the thread has ended.
        """
        self.check()
        key = next(self._keys)
        answer = self._answers[key] = self.loop.create_future()

        def add(core: Core) -> None:
            try:
                core.add(key, prompt, images, sampling)
            except EngineFault as fault:
                self.loop.call_soon_threadsafe(fail, answer, fault)

        self._inbox.put(add)
        try:
            return await answer
        except asyncio.CancelledError:
            self._inbox.put(lambda core: core.abort(key))
            raise
        finally:
            del self._answers[key]

    async def call(self, function: Callable[[Core], T]) -> T:
        """Run ``function`` on the thread between two steps; an error in it is the end of the engine."""
        self.check()
        called: asyncio.Future[T] = self.loop.create_future()
        self._calls.add(called)

        def command(core: Core) -> None:
            result = function(core)
            self.loop.call_soon_threadsafe(done, result)

        def done(result: T) -> None:
            if not called.done():
                called.set_result(result)

        self._inbox.put(command)
        try:
            return await called
        finally:
            self._calls.discard(called)

    def check(self) -> None:
        """Raise :class:`~workers.rollout.engine.EngineDead` if the thread has ended."""
        if self.dead is not None:
            raise self.dead

    async def stop(self, within_s: float) -> None:
        """End the thread after its present step; one that is still starting is left behind."""
        self._inbox.put(None)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._ended.wait()

    def _run(self) -> None:
        try:
            core = self.build()
            while self._obey(core):
                if core.busy and (finished := core.step()):
                    self.loop.call_soon_threadsafe(self._deliver, finished)
            self.loop.call_soon_threadsafe(self._ended.set)
        except BaseException as error:
            self.loop.call_soon_threadsafe(self._die, error)
            raise

    def _obey(self, core: Core) -> bool:
        """Work off the commands that are there, waiting for one while there is nothing to step; False to end."""
        while True:
            try:
                command = self._inbox.get(block=not core.busy)
            except queue.Empty:
                return True
            if command is None:
                return False
            command(core)

    def _deliver(self, finished: list[Made]) -> None:
        for made in finished:
            answer = self._answers.get(made.key)
            if answer is not None and not answer.done():
                answer.set_result(made)

    def _die(self, error: BaseException) -> None:
        self.dead = EngineDead(f"vLLM failed: {type(error).__name__}: {error}")
        self.dead.__cause__ = error
        self._ended.set()
        for future in (*self._answers.values(), *self._calls):
            fail(future, self.dead)


def fail(future: asyncio.Future, error: Exception) -> None:
    """Set ``error`` on a future that somebody still waits for."""
    if not future.done():
        future.set_exception(error)
