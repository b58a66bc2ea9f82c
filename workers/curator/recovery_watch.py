"""Ends a curator whose Faust neither recovers its tables nor delivers records.

Defect of Faust (0.15.3): a rebalance after a broker outage or during a recovery may start a recovery that waits forever
for changelog records. A restarted process recovers. :mod:`workers.curator.transport` handles the two known causes.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from dart_streams.deadline import Deadline
from dart_streams.errors import UserError

RECOVERY_TIMEOUT_S = 90.0
"""Timeout of progress in a rebalance and its recovery: longer than the group waits for a silent member (Faust's
``broker_rebalance_timeout``, 60 s)."""
CHECK_INTERVAL_S = 1.0


class Recovering(Protocol):
    """The recovery state of a ``faust.App``."""

    rebalancing: bool
    in_recovery: bool


class RecoveryStuck(UserError):
    """The tables are not recovered; the supervisor restarts this curator."""

    exit_code = 1


async def watch_recovery(app: Recovering, recovered: Callable[[], int]) -> None:
    """Raise RecoveryStuck once the number ``recovered`` stops growing during a recovery; runs until cancelled."""
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
