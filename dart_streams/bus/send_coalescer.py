"""Coalesces concurrent sends: a send after a pause goes at once, those of the next moments go together."""

import asyncio
import math


class SendCoalescer:
    """Releases waiting senders at most every ``gap_s`` seconds, all of them at once and in order."""

    def __init__(self, gap_s: float) -> None:
        self.gap_s = gap_s
        self._next_s = -math.inf
        self._release: asyncio.Event | None = None

    async def wait(self) -> None:
        """Return at once if the last release is ``gap_s`` ago, else with the next one."""
        if self._release is None:
            loop = asyncio.get_running_loop()
            now_s = loop.time()
            if now_s >= self._next_s:
                self._next_s = now_s + self.gap_s
                return
            self._release = asyncio.Event()
            loop.call_at(self._next_s, self._release_all, self._release)
        await self._release.wait()

    def _release_all(self, release: asyncio.Event) -> None:
        self._release = None
        self._next_s = asyncio.get_running_loop().time() + self.gap_s
        release.set()
