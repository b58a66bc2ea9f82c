"""Waits until a machine is at rest: no process computes, or the screen no longer changes.

The first is exact on desktops of ours, which run nothing but the task. On a whole system services work now and then, so
a wait there is as long as OSWorld's own pause at most.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from dart_desktops.osworld.machine import Machine, run_command
from dart_streams.deadline import Deadline
from workers.env.environment import EnvironmentFault

POLL_INTERVAL_S = 0.05
IDLE_S = 0.4
"""Time without a computing process after which a desktop of ours is idle."""
SYSTEM_IDLE_S = 1.0
"""That time on a whole system, where an application may wait for a service while it starts."""
SLACK_S = 30.0
SCRIPT = """
import os, sys, time
quiet_s, limit_s = map(float, sys.argv[1:])
own = {os.getpid(), os.getppid()}
def busy():
    for pid in os.listdir("/proc"):
        if not pid.isdigit() or int(pid) in own or int(pid) == 1:
            continue
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                stat = open(f"/proc/{pid}/task/{thread}/stat").read()
                if stat[stat.rindex(")") + 2] in "RD":
                    return True
        except OSError:
            return True
    return False
end = time.monotonic() + limit_s
since = time.monotonic()
while time.monotonic() < end:
    if busy():
        since = time.monotonic()
    elif time.monotonic() - since >= quiet_s:
        print("quiet")
        break
    time.sleep(0.02)
"""


async def wait_idle(machine: Machine, limit_s: float, idle_s: float = IDLE_S) -> bool:
    """Wait until for ``idle_s`` no process computes or waits for a disk; return whether that is so in ``limit_s``.

    Raises EnvironmentFault if the machine cannot run the check.
    """
    command = ["/usr/bin/python3", "-c", SCRIPT, str(idle_s), str(max(limit_s, idle_s))]
    failure = "the machine cannot say whether it is at rest"
    return (await run_command(machine, command, failure, limit_s=limit_s + SLACK_S)).strip() == "quiet"


async def require_idle(machine: Machine, limit_s: float, when: str) -> None:
    """Wait until a machine is idle; raise EnvironmentFault that says ``when`` it still computes after ``limit_s``."""
    if not await wait_idle(machine, limit_s):
        raise EnvironmentFault(f"{when}: the machine still computes after {limit_s:g} s")


async def wait_until(fact: Callable[[], Awaitable[bool]], limit_s: float, failure: str) -> None:
    """Wait until a fact holds; raise EnvironmentFault with ``failure`` if it does not within ``limit_s``."""
    deadline = Deadline(limit_s)
    while not await fact():
        if deadline.expired:
            raise EnvironmentFault(f"{failure} within {limit_s:g} s")
        await asyncio.sleep(POLL_INTERVAL_S)


async def wait_stable(machine: Machine, deadline: Deadline, stable_s: float, limit_s: float) -> tuple[bytes, bool]:
    """Return the screen and True once it has been the same for ``stable_s``; as it is and False after ``limit_s``.

    At least two screens are compared.
    """
    began = time.monotonic()
    last, since = await machine.screenshot(deadline), began
    while True:
        await asyncio.sleep(max(POLL_INTERVAL_S, min(stable_s / 2, deadline.remaining_s)))
        screen, now = await machine.screenshot(deadline), time.monotonic()
        if screen != last:
            last, since = screen, now
        elif now - since >= stable_s:
            return screen, True
        if now - began > limit_s:
            return screen, False
