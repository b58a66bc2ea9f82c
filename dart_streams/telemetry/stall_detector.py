"""A wait that says what it waits for, since when, and who was last heard of. No silent hang."""

import time
from collections.abc import Callable
from typing import Any, Protocol


class WarningLog(Protocol):
    """What a wait reports to: a structlog logger."""

    def warning(self, event: str, **fields: Any) -> Any:
        """Log ``event``."""
        ...


class StallDetector:
    """Watches one thing that a process waits for, for instance records of a topic.

    Call :meth:`heard` at each arrival and :meth:`check` as often as is convenient: a silence longer than ``bound_s``
    is logged once, and again each time it has doubled.
    """

    def __init__(self, log: WarningLog, what: str, bound_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.log = log
        self.what = what
        self.bound_s = bound_s
        self.clock = clock
        self.since = clock()
        self.last_from = "nobody yet"
        self._report_at = self.since + bound_s

    @property
    def silent_s(self) -> float:
        """Seconds since something was heard, or since the wait began."""
        return self.clock() - self.since

    def heard(self, who: str) -> None:
        """Note an arrival from ``who``."""
        self.since = self.clock()
        self.last_from = who
        self._report_at = self.since + self.bound_s

    def check(self) -> bool:
        """Log a silence past the bound; say whether it is past it."""
        silent_s = self.silent_s
        if self.clock() >= self._report_at:
            self._report_at = self.since + 2 * max(silent_s, self.bound_s)
            self.log.warning(
                "waiting", waits_for=self.what, silent_s=round(silent_s, 1), last_heard_from=self.last_from
            )
        return silent_s > self.bound_s
