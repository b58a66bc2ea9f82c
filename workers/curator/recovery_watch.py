"""Gives up a recovery of the tables that stands still: a process that is started again reads the changelogs anew."""

import asyncio
import time

import faust

from dart_streams.errors import ServiceUnavailable

STILL_S = 120.0
"""How long a recovery may get no record of the changelogs."""
LOOK_S = 1.0


async def watch_recovery(app: faust.App) -> None:
    """Raise ServiceUnavailable once a recovery has got no record for :data:`STILL_S`."""
    recovery = app.tables.recovery  # type: ignore[attr-defined]
    left, since = None, time.monotonic()
    while True:
        await asyncio.sleep(LOOK_S)
        now_left = recovery.active_remaining_total() if recovery.in_recovery else None
        if now_left is None or now_left != left:
            left, since = now_left, time.monotonic()
        elif time.monotonic() - since > STILL_S:
            raise ServiceUnavailable(
                f"the state cannot be restored: no record of the changelogs came within {STILL_S:g} s, {left} are left;"
                " look whether Kafka answers"
            )
