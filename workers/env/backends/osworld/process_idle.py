"""Waiting, over the contract alone, until no process of a machine computes or waits for a processor or a disk.

For machines that run nothing but the task: on a whole system some service is always at work, and pauses are fixed.
"""

import functools

from workers.env.backends.osworld.machine import Machine
from workers.env.backends.osworld.setup import Settle
from workers.env.environment import EnvironmentFault

QUIET_S = 0.4
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
SLACK_S = 10.0


def settle_of(machine: Machine) -> Settle:
    """Return what waits until a machine is at rest."""
    return functools.partial(wait_idle, machine)


async def wait_idle(machine: Machine, limit_s: float) -> bool:
    """Wait until the machine is at rest, ``limit_s`` at most; return whether it is.

    Raises EnvironmentFault if the machine cannot say it.
    """
    command = ["/usr/bin/python3", "-c", SCRIPT, str(QUIET_S), str(max(limit_s, QUIET_S))]
    ended = await machine.execute(command, limit_s=limit_s + SLACK_S)
    if ended["returncode"] != 0:
        raise EnvironmentFault(f"the machine cannot say whether it is at rest: {ended['error'][-200:]}")
    return ended["output"].strip() == "quiet"
