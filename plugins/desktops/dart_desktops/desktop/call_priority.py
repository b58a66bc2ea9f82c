"""Weight of desktops beside other programs while they answer calls: shared at first, and growing with a call's length.

The calls in progress share the weight of one process of usual priority on each processor. So a few desktops are not
slow beside a busy program, and many take no more than that program does.
"""

import asyncio
import contextlib
import functools
from collections.abc import Iterator
from typing import ClassVar

from dart_desktops.desktop.limits import SHARES, USUAL_SHARES, ControlGroup
from dart_streams.config.hardware import read_machine

LATE_S = 1.0
"""Duration of a call without a growing weight: that of a usual reset on a machine with little other work."""
PERIOD_S = 0.5
"""The weight doubles each time."""
HIGHEST = 256
"""Highest weight in that of an idle desktop: half of a processor beside 27 busy processes of usual priority on it."""
ALLOWANCE_CPU_S = 10.0
"""CPU time of a call with a higher weight once it is late, several times that of an application's start."""


class CallPriority:
    """Raises the weight of a desktop's control group during calls, and restores it after them.

    So a desktop keeps its time limits beside busy processes of other programs, whatever their number. A call that
    computes beyond ``ALLOWANCE_CPU_S`` has the weight of an idle desktop again.
    """

    _in_progress: ClassVar[int] = 0
    """Desktops of this worker with a call."""

    def __init__(self, group: ControlGroup) -> None:
        self.group = group
        self.calls = 0
        self._growth = 1
        self._cpu_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @contextlib.contextmanager
    def during_call(self) -> Iterator[None]:
        """Hold a call; the first of several at once counts."""
        self.calls += 1
        if self.calls == 1 and self.group.folders:
            CallPriority._in_progress += 1
            self._set_weight()
            self._timer = asyncio.get_running_loop().call_later(LATE_S, self._double)
        try:
            yield
        finally:
            self.calls -= 1
            if self.calls == 0 and self.group.folders:
                CallPriority._in_progress -= 1
                self._restore()

    def _double(self) -> None:
        cpu_s = self.group.cpu_s() or 0.0
        if self._growth == 1:
            self._cpu_s = cpu_s
        if cpu_s - self._cpu_s > ALLOWANCE_CPU_S:
            self._restore()
            return
        self._growth = min(2 * self._growth, HIGHEST)
        self._set_weight()
        self._timer = asyncio.get_running_loop().call_later(PERIOD_S, self._double)

    def _set_weight(self) -> None:
        shared = shared_weight(self._in_progress, count_processors())
        self.group.set_weight(min(shared * self._growth, HIGHEST))

    def _restore(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._growth = 1
        self.group.set_weight(1)


def shared_weight(calls: int, cores: int) -> float:
    """Return a call's part of the processors, at most usual priority, in the weight of an idle desktop; at least 1."""
    usual = USUAL_SHARES / SHARES
    return max(1.0, min(usual, usual * cores / calls))


@functools.cache
def count_processors() -> int:
    """Return the number of this worker's processors."""
    return read_machine().cores
