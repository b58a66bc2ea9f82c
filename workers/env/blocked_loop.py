"""Ends a worker whose event loop an environment has blocked, with a traceback that names the call.

A call that computes, sleeps or waits without ``await`` holds up every slot and the heartbeats of the consumer group.
Nothing in this process can interrupt it; so the process ends, and the order that it was in counts one death
(:mod:`workers.env.lethal_orders`).
"""

import asyncio
import faulthandler
import sys

BLOCKED_S = 60.0
"""How long the event loop may stand still: six times what the group waits for a member's heartbeat."""
TURN_S = 1.0


async def end_when_blocked() -> None:
    """Put off the end of this process each second, until cancelled; the frames are the last of its log.

    The interpreter's own timer does it, which needs neither the event loop nor the interpreter's lock. A process that
    was stopped for longer (SIGSTOP) ends when it goes on: its group has long given its orders to another. One that a
    person debugs may stand still for as long as that takes.
    """
    if is_debugged():
        await asyncio.Event().wait()
    try:
        while True:
            faulthandler.dump_traceback_later(BLOCKED_S, exit=True)
            await asyncio.sleep(TURN_S)
    finally:
        faulthandler.cancel_dump_traceback_later()


def is_debugged() -> bool:
    """Say whether a person may halt this process: it has a terminal for its input, or a debugger."""
    return sys.gettrace() is not None or (sys.stdin is not None and sys.stdin.isatty())
