"""Logs a wait that has become too long: for what, for how long, and the source of the last arrival."""

import time
from collections.abc import Callable
from typing import Any


class StallDetector:
    """Watches one thing that a process waits for, for instance records of a topic.

    Call :meth:`note_arrival` at each arrival and :meth:`check` as often as is convenient: a silence longer than
    ``bound_s`` is logged to ``log`` (structlog's) once, and again each time it has doubled.
    """

    def __init__(self, log: Any, what: str, bound_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.log = log
        self.what = what
        self.bound_s = bound_s
        self.clock = clock
        self.last_from = "nobody yet"
        self.note_arrival()

    @property
    def silent_s(self) -> float:
        """Seconds since the last arrival, or since the wait began."""
        return self.clock() - self.since

    def note_arrival(self, source: str = "") -> None:
        """Restart the wait: something arrived from ``source``; without one, the wait begins only now."""
        self.since = self.clock()
        self.last_from = source or self.last_from
        self._report_at = self.since + self.bound_s

    def check(self) -> bool:
        """Return whether the silence is longer than the bound, and log it if so."""
        silent_s = self.silent_s
        if self.clock() >= self._report_at:
            self._report_at = self.since + 2 * max(silent_s, self.bound_s)
            self.log.warning("waiting", waits_for=self.what, silent_s=round(silent_s, 1), last_from=self.last_from)
        return silent_s > self.bound_s
