"""A browser's contexts: how long one may take to show its document follows the pace of the machine."""

import asyncio

import pytest

from dart_streams.config.env import Miniwob
from workers.env.backends.miniwob import pooled_browser
from workers.env.backends.miniwob.pooled_browser import PooledBrowser
from workers.env.environment import EnvironmentFault


class LateContext:
    begun = disposed = 0

    def __init__(self, late_s: float) -> None:
        self.late_s = late_s

    async def begin(self, document: str) -> None:
        self.begun += 1
        await asyncio.sleep(self.late_s)

    async def dispose(self) -> None:
        self.disposed += 1


async def attempts(pool: PooledBrowser, context: LateContext) -> int:
    """Return how many attempts a context takes to show its document, each within the pool's limit."""
    for attempt in range(1, 20):
        try:
            await pool._begin(context, "a page", max(pooled_browser.OPEN_S, pool.pace_s))  # type: ignore[arg-type]
        except EnvironmentFault:
            continue
        return attempt
    pytest.fail("no page is ever shown")


async def test_contexts_of_a_busy_machine_are_given_the_time_that_they_take(monkeypatch: pytest.MonkeyPatch):
    """At a load of 20 each page took longer than 5 s, so each was replaced before it was ready, for minutes."""
    monkeypatch.setattr(pooled_browser, "OPEN_S", 0.01)
    pool, late = PooledBrowser(Miniwob(), [], 1, 1), LateContext(0.2)
    assert 2 <= await attempts(pool, late) <= 7
    assert late.disposed == late.begun - 1
    assert await attempts(pool, late) == 1, "the next one has four times as long as the last one took"
    assert await attempts(pool, LateContext(0.0)) == 1
    assert max(pooled_browser.OPEN_S, pool.pace_s) < 0.2, "of a machine that is quick again"
