"""Ends a worker whose event loop an environment has blocked, with a traceback of the call.

A call that blocks without ``await`` stops all slots and the heartbeats of the consumer group, and cannot be
interrupted. So the process ends, and the order counts one death (:mod:`workers.env.lethal_orders`).
"""

import asyncio
import faulthandler
import sys

BLOCKED_S = 60.0
"""Time limit of a blocked event loop: six times the group's limit for heartbeats."""
POLL_INTERVAL_S = 1.0


async def end_when_blocked() -> None:
    """Postpone the end of this process each second until cancelled; the end logs a traceback.

    The interpreter's timer needs neither the event loop nor the GIL. A process that was stopped for longer (SIGSTOP)
    ends when it continues: its group has reassigned its orders. A process that a user
    may halt, by its terminal or a debugger, is exempt.
    """
    if sys.gettrace() is not None or (sys.stdin is not None and sys.stdin.isatty()):
        await asyncio.Event().wait()
    try:
        while True:
            faulthandler.dump_traceback_later(BLOCKED_S, exit=True)
            await asyncio.sleep(POLL_INTERVAL_S)
    finally:
        faulthandler.cancel_dump_traceback_later()
