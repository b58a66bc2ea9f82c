"""Ends a curator whose Faust neither recovers its tables nor gives it records.

Defect of Faust (0.15.3): a rebalance after the broker was away, or during a recovery, may begin a recovery that waits
for ever for records of the changelogs. The process lives then, and does nothing. One that is started in its place
recovers. :mod:`workers.curator.transport` answers the two causes that are known.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from dart_streams.deadline import Deadline
from dart_streams.errors import UserError

RECOVERY_TIMEOUT_S = 90.0
"""How long a rebalance, with the recovery that follows, may bring nothing: longer than the consumer group waits for a
member that does not answer (Faust's ``broker_rebalance_timeout``, 60 s)."""
CHECK_INTERVAL_S = 1.0


class Recovering(Protocol):
    """What a ``faust.App`` says of itself."""

    rebalancing: bool
    in_recovery: bool


class RecoveryStuck(UserError):
    """The tables are not recovered; the supervisor starts this curator anew."""

    exit_code = 1


async def watch_recovery(app: Recovering, recovered: Callable[[], int]) -> None:
    """Raise RecoveryStuck once nothing was ``recovered``, a number of records, for so long; until cancelled."""
    seen, left = -1, Deadline(RECOVERY_TIMEOUT_S)
    while True:
        if not (app.rebalancing or app.in_recovery) or recovered() != seen:
            seen, left = recovered(), Deadline(RECOVERY_TIMEOUT_S)
        elif left.expired:
            raise RecoveryStuck(
                f"the curator's tables are not recovered: no changelog record has arrived for {RECOVERY_TIMEOUT_S:g} s "
                f"since a rebalance, after {seen} records. The curator restarts and reads them again; no action needed"
            )
        await asyncio.sleep(CHECK_INTERVAL_S)
