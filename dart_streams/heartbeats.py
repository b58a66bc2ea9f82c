"""Who is alive, judged by when heartbeats arrive here. Pure but for a monotonic clock.

The times that heartbeats carry are never used: they are of other machines, whose clocks may be wrong or jump. Time is
that of the newest heartbeat of anyone, not of the clock itself: while none arrive, because the broker is away or this
process stood still, nobody is counted as dead.
"""

import math
import time
from collections.abc import Callable, Hashable


class Heartbeats:
    """When each sender was last heard."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heard: dict[str, tuple[Hashable, float]] = {}
        self._newest_s = -math.inf

    def hear(self, sender: str, beat: Hashable) -> None:
        """Note a heartbeat that has arrived now; the newest one of a sender again (an equal ``beat``) is no news."""
        known = self._heard.get(sender)
        if known is None or known[0] != beat:
            self._newest_s = self._clock()
            self._heard[sender] = (beat, self._newest_s)

    def silent_s(self, sender: str) -> float:
        """Return for how many seconds others were heard since ``sender`` was; infinity if it never was."""
        known = self._heard.get(sender)
        return math.inf if known is None else self._newest_s - known[1]

    def alive(self, bound_s: float) -> set[str]:
        """Return those who were heard, and since when others were heard for at most ``bound_s``."""
        return {sender for sender in self._heard if self.silent_s(sender) <= bound_s}
