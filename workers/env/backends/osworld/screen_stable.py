"""Screens that no longer change: all that the contract lets a client know of a machine at rest."""

import asyncio
import time

from dart_streams.deadline import Deadline
from workers.env.backends.osworld.machine import Machine

POLL_INTERVAL_S = 0.05


async def wait_stable(machine: Machine, deadline: Deadline, quiet_s: float, limit_s: float) -> tuple[bytes, bool]:
    """Return the screen once it has stayed the same for ``quiet_s``, and True; after ``limit_s`` as it is, and False.

    At least two screens are looked at.
    """
    began = time.monotonic()
    last, since = await machine.screenshot(deadline), began
    while True:
        await asyncio.sleep(max(POLL_INTERVAL_S, min(quiet_s / 2, deadline.remaining_s)))
        screen, now = await machine.screenshot(deadline), time.monotonic()
        if screen != last:
            last, since = screen, now
        elif now - since >= quiet_s:
            return screen, True
        if now - began > limit_s:
            return screen, False
