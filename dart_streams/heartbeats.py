"""Who is alive, judged by when heartbeats arrive here. Pure but for a monotonic clock.

The times that heartbeats carry are never used: they are of other machines, whose clocks may be wrong or jump. Time is
that of the newest heartbeat of anyone, not of the clock itself: while none arrive, because the broker is away or this
process stood still, nobody is counted as dead.
"""

import math
import time
from collections.abc import Callable, Hashable


class Heartbeats:
    """When the newest heartbeat of each sender arrived."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: dict[str, tuple[Hashable, float]] = {}
        self._newest_s = -math.inf

    def note(self, sender: str, beat: Hashable) -> None:
        """Note a heartbeat that has arrived now; the newest one of a sender again (an equal ``beat``) says nothing."""
        known = self._last.get(sender)
        if known is None or known[0] != beat:
            self._newest_s = self._clock()
            self._last[sender] = (beat, self._newest_s)

    def silent_s(self, sender: str) -> float:
        """Return for how many seconds others' heartbeats came since this sender's last; infinity if it had none."""
        known = self._last.get(sender)
        return math.inf if known is None else self._newest_s - known[1]

    def alive(self, bound_s: float) -> set[str]:
        """Return those who had a heartbeat, and since when others' came for at most ``bound_s``."""
        return {sender for sender in self._last if self.silent_s(sender) <= bound_s}
