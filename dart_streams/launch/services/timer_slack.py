"""Linux's timer slack: how much later than asked the kernel may wake a thread that sleeps.

Cassandra's idle workers sleep for microseconds at a time, again and again, to be there when work comes: with the
kernel's usual 50 us that is thousands of wake-ups a second. Later ones do for a node whose writes wait for a disk.
"""

import contextlib
import ctypes
import sys
from collections.abc import Iterator

PR_SET_TIMERSLACK = 29
DEFAULT = 0


@contextlib.contextmanager
def timer_slack(microseconds: int) -> Iterator[None]:
    """Have processes that this thread starts meanwhile sleep that inexactly; 0, or another system: as ever."""
    if not microseconds or not sys.platform.startswith("linux"):
        yield
        return
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(microseconds * 1000))
    try:
        yield
    finally:
        libc.prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(DEFAULT))
