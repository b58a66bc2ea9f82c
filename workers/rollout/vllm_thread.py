"""The thread on which vLLM runs: commands are executed between two steps."""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from dart_streams.policy.rendering import Prompt
from topics.values import Sampling
from workers.rollout.engine import EngineDead, EngineFault, Generation
from workers.rollout.patches import ImagePatches
from workers.rollout.vllm_core import EngineRequest, VllmCore

T = TypeVar("T")
Command = Callable[[VllmCore], None]


class EngineThread:
    """Continuous batching: every request that has come by the next step is part of it.

    An unexpected error in the engine ends the thread, and every call fails with
    :class:`~workers.rollout.engine.EngineDead`: half-loaded weights must not serve.
    """

    def __init__(self, build: Callable[[], VllmCore]) -> None:
        self.build = build
        self.loop = asyncio.get_running_loop()
        self.dead: EngineDead | None = None
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._pending: set[Future[Any]] = set()
        # A daemon, so that a start that hangs does not keep a stopped process alive.
        self._thread = threading.Thread(target=self._run, name="vllm", daemon=True)
        self._thread.start()

    async def generate(self, prompt: Prompt, images: Sequence[ImagePatches], sampling: Sampling) -> Generation:
        """Generate a response, without its text; when cancelled, the engine aborts the request.

        Raises EngineFault if the engine rejects it, for instance as too long, EngineDead if the thread has ended.
        """
        request = EngineRequest(prompt, images, sampling)

        def add(core: VllmCore) -> None:
            try:
                core.add(request)
            except EngineFault as fault:
                request.future.set_exception(fault)

        try:
            return await self._submit(add, request.future)
        except asyncio.CancelledError:
            self._commands.put(lambda core: core.abort(request))
            raise

    async def call(self, function: Callable[[VllmCore], T]) -> T:
        """Run ``function`` on the thread between two steps; an error in it ends the engine."""
        future: Future[T] = Future()
        return await self._submit(lambda core: future.set_result(function(core)), future)

    async def _submit(self, command: Command, future: Future[T]) -> T:
        """Have the thread execute ``command``, and return what it sets on ``future``."""
        self.check()
        future.set_running_or_notify_cancel()  # The thread may set it even if the caller is cancelled.
        self._pending.add(future)
        self._commands.put(command)
        try:
            return await asyncio.wrap_future(future)
        finally:
            self._pending.discard(future)

    def check(self) -> None:
        """Raise :class:`~workers.rollout.engine.EngineDead` if the thread has ended."""
        if self.dead is not None:
            raise self.dead

    async def stop(self, timeout_s: float) -> None:
        """End the thread after its present step; one that is still starting is left behind."""
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join, timeout_s)

    def _run(self) -> None:
        try:
            core = self.build()
            while self._execute_commands(core):
                if core.busy:
                    core.step()
        except BaseException as error:
            self.loop.call_soon_threadsafe(self._die, error)
            raise

    def _execute_commands(self, core: VllmCore) -> bool:
        """Execute the commands in the queue, waiting for one while the engine is idle; return False to end."""
        while True:
            try:
                command = self._commands.get(block=not core.busy)
            except queue.Empty:
                return True
            if command is None:
                return False
            command(core)

    def _die(self, error: BaseException) -> None:
        self.dead = EngineDead(f"vLLM failed: {type(error).__name__}: {error}")
        self.dead.__cause__ = error
        for future in self._pending:
            if not future.done():
                future.set_exception(self.dead)
