"""A slot has one desktop at a time, which is prepared ahead of its lease and ended after it."""

import asyncio
import contextlib
import time
from collections.abc import Mapping

import structlog

from dart_desktops.desktop.sandbox import Sandbox
from workers.env.environment import EnvironmentFault, Size

PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
"""First and longest pause after a failed preparation; each failure doubles it."""
EMPTY: Mapping[str, object] = {"command": [], "files": {}, "watched": []}
"""A session without an application."""

log = structlog.get_logger()


class Slot:
    """One slot; :meth:`run` prepares its desktops in turn."""

    def __init__(self, number: int, size: Size, call_timeout_s: float, preparing: asyncio.Semaphore) -> None:
        self.number = number
        self.size = size
        self.call_timeout_s = call_timeout_s
        self.ready = asyncio.Event()
        self.sandbox: Sandbox | None = None
        self.since_s = time.monotonic()
        self.reason = "not prepared yet"
        self._preparing = preparing
        self._used = asyncio.Event()
        self._ending: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Keep a desktop ready or in use until cancelled, then end it."""
        pause_s = PAUSE_S
        try:
            while True:
                self._used.clear()
                try:
                    await self._prepare()
                except EnvironmentFault as fault:
                    self._set_state(str(fault))
                    log.warning("desktop not prepared", slot=self.number, reason=str(fault))
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                    continue
                pause_s = PAUSE_S
                await self._used.wait()
                await self._end()
        finally:
            await self._end()

    @property
    def is_ready(self) -> bool:
        """Whether there is an unused desktop that lives."""
        return self.ready.is_set() and self.sandbox is not None and self.sandbox.alive

    def give_up(self) -> None:
        """End the desktop and prepare another one."""
        self._set_state("being prepared")
        self._used.set()

    def take(self) -> None:
        """Take the ready desktop."""
        assert self.sandbox is not None
        self._set_state("")

    async def check(self) -> None:
        """Raise EnvironmentFault if a part of the desktop has died."""
        if self.sandbox is not None:
            await self.sandbox.request("GET", "outcome")

    async def _prepare(self) -> None:
        async with self._preparing:
            self._set_state("being prepared")
            sandbox = Sandbox(*self.size, self.call_timeout_s)
            try:
                await sandbox.start()
                await sandbox.request("POST", "session", EMPTY)
            except BaseException:
                with contextlib.suppress(EnvironmentFault):
                    await asyncio.shield(sandbox.stop())
                raise
            self.sandbox = sandbox
            self._set_state("")
            self.ready.set()

    async def _end(self) -> None:
        """End the desktop. A cancelled call goes on behind it, and the next call waits for that."""
        if self.sandbox is not None:
            sandbox, self.sandbox = self.sandbox, None
            self._ending = asyncio.ensure_future(sandbox.stop())
        if self._ending is not None:
            await asyncio.shield(self._ending)

    def _set_state(self, reason: str) -> None:
        self.ready.clear()
        self.reason, self.since_s = reason, time.monotonic()
