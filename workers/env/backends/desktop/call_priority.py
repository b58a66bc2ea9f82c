"""Priority of a desktop during long calls: its weight beside other programs grows until the call has ended."""

import asyncio
import contextlib
from collections.abc import Iterator

from workers.env.backends.desktop.limits import ControlGroup

LATE_S = 1.0
"""Duration of a call without a higher weight: that of a usual reset on a machine with little other work."""
PERIOD_S = 0.5
"""The weight doubles each time."""
DOUBLINGS = 8
"""Maximum, which gives a desktop half of a processor beside 27 busy processes of usual priority on it."""
ALLOWANCE_CPU_S = 10.0
"""CPU time of a call with a higher weight, several times that of an application's start."""


class CallPriority:
    """Raises the weight of a control group while calls are late, and restores it after them.

    So a desktop keeps its time limits beside busy processes of other programs, whatever their number. A call that
    computes beyond ``ALLOWANCE_CPU_S`` has the usual weight again.
    """

    def __init__(self, group: ControlGroup) -> None:
        self.group = group
        self.calls = 0
        self._raised = 0
        self._cpu_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @contextlib.contextmanager
    def during_call(self) -> Iterator[None]:
        """Hold a call; the first of several at once counts."""
        self.calls += 1
        if self.calls == 1 and self.group.folders:
            self._timer = asyncio.get_running_loop().call_later(LATE_S, self._raise)
        try:
            yield
        finally:
            self.calls -= 1
            if self.calls == 0:
                self._restore()

    def _raise(self) -> None:
        cpu_s = self.group.cpu_s() or 0.0
        if self._raised == 0:
            self._cpu_s = cpu_s
        if cpu_s - self._cpu_s > ALLOWANCE_CPU_S:
            self._restore()
            return
        self._raised = min(self._raised + 1, DOUBLINGS)
        self.group.set_weight(2**self._raised)
        self._timer = asyncio.get_running_loop().call_later(PERIOD_S, self._raise)

    def _restore(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._raised:
            self._raised = 0
            self.group.set_weight(1)
