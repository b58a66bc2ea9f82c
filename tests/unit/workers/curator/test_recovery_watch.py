"""When a curator counts as one whose tables are not recovered."""

import asyncio
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from workers.curator import recovery_watch
from workers.curator.recovery_watch import RecoveryStuck, watch_recovery


class State(NamedTuple):
    rebalancing: bool = False
    in_recovery: bool = False


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recovery_watch, "RECOVERY_TIMEOUT_S", 0.0)
    monkeypatch.setattr(recovery_watch, "CHECK_INTERVAL_S", 0.0)


async def looks(state: State, recovered: Iterator[int], number: int) -> None:
    """Watch for ``looks`` polls."""
    looked, enough = itertools.count(1), asyncio.Event()

    def count() -> int:
        if next(looked) > number:
            enough.set()
        return next(recovered)

    watching = asyncio.create_task(watch_recovery(state, count))
    waiting = asyncio.create_task(enough.wait())
    await asyncio.wait({watching, waiting}, return_when=asyncio.FIRST_COMPLETED)
    for task in (watching, waiting):
        task.cancel()
    await asyncio.gather(watching, waiting, return_exceptions=True)
    if not watching.cancelled():
        watching.result()


RECOVERING = [State(rebalancing=True), State(in_recovery=True)]


@pytest.mark.parametrize("state", RECOVERING)
async def test_without_a_further_record_it_is_stuck(state):
    with pytest.raises(RecoveryStuck, match="after 7 records"):
        await looks(state, itertools.repeat(7), 20)


@pytest.mark.parametrize(
    ("state", "recovered"), [*((state, itertools.count()) for state in RECOVERING), (State(), itertools.repeat(7))]
)
async def test_with_further_records_or_without_a_recovery_it_is_not(state, recovered):
    await looks(state, recovered, 20)
