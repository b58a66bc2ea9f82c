"""Liveness by the arrival of heartbeats. Pure but for a monotonic clock.

The times in heartbeats are never used, because clocks of other machines may be wrong. Age is measured up to the newest
heartbeat of any sender: without any, because the broker is away or this process stood still, no sender counts as dead.
"""

import math
import time
from collections.abc import Callable, Hashable


class Heartbeats:
    """The arrival times of each sender's newest heartbeat."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: dict[str, tuple[Hashable, float]] = {}
        self._newest_s = -math.inf

    def note(self, sender: str, beat: Hashable) -> None:
        """Note the arrival of a heartbeat; a repeated one (an equal ``beat``) is ignored."""
        known = self._last.get(sender)
        if known is None or known[0] != beat:
            self._newest_s = self._clock()
            self._last[sender] = (beat, self._newest_s)

    def silent_s(self, sender: str) -> float:
        """Return the seconds from a sender's last heartbeat to the newest of any; infinity if it had none."""
        known = self._last.get(sender)
        return math.inf if known is None else self._newest_s - known[1]

    def alive(self, bound_s: float) -> set[str]:
        """Return the senders that are silent for at most ``bound_s``."""
        return {sender for sender in self._last if self.silent_s(sender) <= bound_s}
