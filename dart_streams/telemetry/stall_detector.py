"""Logs a wait that is too long: its subject, its duration, and the source of the last arrival."""

import time
from collections.abc import Callable
from typing import Any


class StallDetector:
    """Watches the wait of a process for one thing, for instance records of a topic.

    Call :meth:`note_arrival` at each arrival and :meth:`check` regularly. A silence longer than ``bound_s`` is logged
    to ``log`` (structlog's) once, and again each time it has doubled.
    """

    def __init__(self, log: Any, what: str, bound_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.log = log
        self.what = what
        self.bound_s = bound_s
        self.clock = clock
        self.last_from = "none yet"
        self.note_arrival()

    def note_arrival(self, source: str = "") -> None:
        """Restart the wait after an arrival from ``source``; without one, the wait begins now."""
        self.since = self.clock()
        self.last_from = source or self.last_from
        self._report_at = self.since + self.bound_s

    def check(self) -> bool:
        """Return whether the silence exceeds the bound, and log it."""
        now = self.clock()
        silent_s = now - self.since
        if now >= self._report_at:
            self._report_at = self.since + 2 * max(silent_s, self.bound_s)
            self.log.warning("waiting", waits_for=self.what, silent_s=round(silent_s, 1), last_from=self.last_from)
        return silent_s > self.bound_s
