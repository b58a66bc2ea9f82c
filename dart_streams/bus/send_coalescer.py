"""Lets those who come together go together, and whoever comes alone at once."""

import asyncio
import math


class SendCoalescer:
    """Turns that are at least ``gap_s`` apart; everybody who waits for the next one gets it."""

    def __init__(self, gap_s: float) -> None:
        self.gap_s = gap_s
        self._next_s = -math.inf
        self._gate: asyncio.Event | None = None

    async def turn(self) -> None:
        """Return at once if the last turn is ``gap_s`` ago, else when it is, with the others and in order."""
        if self._gate is None:
            loop = asyncio.get_running_loop()
            now_s = loop.time()
            if now_s >= self._next_s:
                self._next_s = now_s + self.gap_s
                return
            self._gate = asyncio.Event()
            loop.call_at(self._next_s, self._open, self._gate)
        await self._gate.wait()

    def _open(self, gate: asyncio.Event) -> None:
        self._gate = None
        self._next_s = asyncio.get_running_loop().time() + self.gap_s
        gate.set()
