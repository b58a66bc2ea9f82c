"""A time budget shared by several blocking calls."""

import asyncio
import math
import time
from collections.abc import Callable


class Deadline:
    """A point of monotonic time, ``seconds`` after its creation; None is no bound.

    Pass ``min(limit_s, deadline.remaining_s)`` to calls that take seconds, and ``deadline.timeout_s`` to calls that
    take None. Around awaits, ``async with deadline.timeout()`` raises :class:`TimeoutError`.
    """

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end_s = math.inf if seconds is None else clock() + seconds

    @property
    def remaining_s(self) -> float:
        """Seconds left, never below 0; infinity without a bound."""
        return max(0.0, self._end_s - self._clock())

    @property
    def timeout_s(self) -> float | None:
        """Seconds left, never below 0; None without a bound."""
        return None if self._end_s == math.inf else self.remaining_s

    @property
    def expired(self) -> bool:
        """Whether no time is left."""
        return self._clock() >= self._end_s

    def timeout(self) -> asyncio.Timeout:
        """Return asyncio's context manager for the time left."""
        return asyncio.timeout(self.timeout_s)
