"""A browser with a pool of contexts; it starts on demand, and again after it has died."""

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import structlog

from dart_streams.config.env import Miniwob
from workers.env import metrics
from workers.env.backends.miniwob.browser import Browser
from workers.env.backends.miniwob.context_pool import PooledContext
from workers.env.environment import EnvironmentFault

OPEN_S = 5.0
"""Least time limit for a context to show its document; then it is replaced, once by a new one with the call's limit."""
PACE = 4.0
"""Time limit of the next context by the time that the last one took. After a late one the limit is doubled."""

log = structlog.get_logger()


class PooledBrowser:
    """One browser of a worker. ``under_way`` counts the episodes that have, or wait for, one of its contexts.

    At most ``spare`` free contexts are kept, each with at most ``documents`` documents. ``pages`` are folders.
    """

    def __init__(self, own: Miniwob, pages: Sequence[Path], spare: int, documents: int) -> None:
        self.own = own
        self.pages = pages
        self.spare = spare
        self.documents = documents
        self.under_way = 0
        self.pace_s = 0.0
        """Time limit of the next context by the pace of the machine."""
        self.browser: Browser | None = None
        self._free: list[PooledContext] = []
        self._launch_lock = asyncio.Lock()

    def keeps(self, document: str) -> bool:
        """Return whether a free context has the document."""
        return any(document in context.targets for context in self._free)

    async def take(self, document: str) -> PooledContext:
        """Return a context for one episode that shows the document; raise EnvironmentFault if that fails.

        A context that has a target of the document is preferred. One that does not respond is replaced: the episode has
        seen nothing of it yet.
        """
        self.under_way += 1
        try:
            browser = await self.start()
            while self._free:
                with replaced_if_faulty():
                    return await self._begin(self._free.pop(self._best(document)), document, max(OPEN_S, self.pace_s))
            with replaced_if_faulty():
                return await self._begin(self._new_context(browser), document, max(OPEN_S, self.pace_s))
            return await self._begin(self._new_context(await self.start()), document, None)
        except BaseException:
            self.under_way -= 1
            raise

    async def give_back(self, context: PooledContext) -> None:
        """Keep a context for the next episode, or dispose of it; never raises."""
        self.under_way -= 1
        if self._has_room(context) and await context.leave() and self._has_room(context):
            self._free.append(context)
        else:
            await context.dispose()

    async def start(self) -> Browser:
        """Return the browser; start one if none lives.

        Raises :class:`~dart_streams.errors.ServiceUnavailable` if none can be started.
        """
        async with self._launch_lock:
            if self.browser is not None and not self.browser.alive:
                reason, exit_code = self.browser.devtools.reason, self.browser.process.poll()
                log.warning("browser died; starting another", reason=reason, exit_code=exit_code)
                metrics.browser_restarts.add(1)
                await self.stop()
            if self.browser is None:
                self.browser = await Browser.launch(self.own.call_timeout_s, self.own.capture, self.pages)
            return self.browser

    async def stop(self) -> None:
        """End the browser."""
        self._free.clear()
        browser, self.browser = self.browser, None
        if browser is not None:
            await browser.kill()

    def _new_context(self, browser: Browser) -> PooledContext:
        return PooledContext(browser.devtools, browser.capturing, self.documents)

    async def _begin(self, context: PooledContext, document: str, limit_s: float | None) -> PooledContext:
        """Return the context once it shows the document; dispose of it if it does not in time."""
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(limit_s):
                await context.begin(document)
            self.pace_s = PACE * (time.monotonic() - began_s)
            return context
        except TimeoutError:
            self.pace_s = max(self.pace_s, 2 * (limit_s or OPEN_S))
            await context.dispose()
            raise EnvironmentFault(f"no page within {limit_s:g} s") from None
        except BaseException:
            await context.dispose()
            raise

    def _has_room(self, context: PooledContext) -> bool:
        """Return whether a context may be kept; its browser may have been replaced."""
        own = self.browser is not None and self.browser.devtools is context.devtools
        return own and len(self._free) < self.spare

    def _best(self, document: str) -> int:
        """Return the index of the free context that has the document, or of that with the fewest."""
        having = (place for place in reversed(range(len(self._free))) if document in self._free[place].targets)
        fewest = min(range(len(self._free)), key=lambda place: len(self._free[place].targets))
        return next(having, fewest)


@contextlib.contextmanager
def replaced_if_faulty() -> Iterator[None]:
    """Suppress and log the fault of a context that another one replaces."""
    try:
        yield
    except EnvironmentFault as fault:
        log.info("browser context replaced", reason=str(fault))
