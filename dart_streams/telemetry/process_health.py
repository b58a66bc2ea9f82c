"""Health of a process as its probes see it: its loop turns within a bound, and it lacks nothing for its work.

``alive`` and ``ready`` differ on purpose. A probe that fails ``alive`` restarts the process. One that fails ``ready``
only keeps others from counting on it, as a rolling update does.
"""

import threading
import time
from collections.abc import Callable

STARTING = "it is starting"
START_BOUND_S = 1800.0
"""Time limit of a start, in which loops may stand still: an engine loads a model, a trainer restores a checkpoint."""


class ProcessHealth:
    """Turns of a process's main loop, and what it lacks to be ready.

    ``bound_s`` is the time limit of a turn once the process has started. Methods may be called from any thread.
    """

    def __init__(self, bound_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.bound_s = bound_s
        self._clock = clock
        self._lock = threading.Lock()
        self._turned_s = clock()
        self._has_started = False
        self._lacks = STARTING

    def note_turn(self, lacks: str = "") -> None:
        """Note a turn of the started process's loop; ``lacks`` says what it lacks to be ready, empty for nothing."""
        with self._lock:
            self._turned_s, self._has_started, self._lacks = self._clock(), True, lacks

    def find_hang(self) -> str:
        """Return why the process counts as hung, empty if it is alive."""
        with self._lock:
            silent_s = self._clock() - self._turned_s
            bound_s = self.bound_s if self._has_started else START_BOUND_S
            what = "its loop has not turned" if self._has_started else "it has not started"
        return f"{what} for {silent_s:.0f} s, and the bound is {bound_s:.0f} s" if silent_s > bound_s else ""

    def find_lack(self) -> str:
        """Return what the process lacks to be ready, empty if it is ready."""
        with self._lock:
            lacks = self._lacks
        return self.find_hang() or lacks
