"""A browser with pooled contexts; it starts on demand, and again after it has died."""

import asyncio

import structlog

from dart_streams.config import Capture
from workers.env import metrics
from workers.env.backends.miniwob.browser import Browser
from workers.env.backends.miniwob.context_pool import BrowserContextPool, PooledContext

log = structlog.get_logger()


class PooledBrowser:
    """One browser of a worker. ``under_way`` counts the episodes that have, or wait for, one of its contexts.

    ``spare`` and ``documents`` belong to its :class:`BrowserContextPool`; ``timeout_s`` bounds each call.
    """

    def __init__(self, timeout_s: float, capture: Capture, spare: int, documents: int) -> None:
        self.timeout_s = timeout_s
        self.capture: Capture = capture
        self.spare = spare
        self.documents = documents
        self.under_way = 0
        self.browser: Browser | None = None
        self._contexts: BrowserContextPool | None = None
        self._launch_lock = asyncio.Lock()

    def keeps(self, document: str) -> bool:
        """Return whether a free context has the document."""
        return self._contexts is not None and self._contexts.keeps(document)

    async def take(self, document: str) -> PooledContext:
        """Return a context for one episode; raise EnvironmentFault if the browser refuses."""
        self.under_way += 1
        try:
            return await (await self.start()).take(document)
        except BaseException:
            self.under_way -= 1
            raise

    async def give_back(self, context: PooledContext) -> None:
        """End the episode of a context; never raises."""
        self.under_way -= 1
        if self._contexts is not None and self._contexts.devtools is context.devtools:
            await self._contexts.give_back(context)
        else:  # Its browser has been replaced.
            await context.dispose()

    async def start(self) -> BrowserContextPool:
        """Return the contexts of the browser; start one if none lives.

        Raises :class:`~dart_streams.errors.ServiceUnavailable` if none can be started.
        """
        async with self._launch_lock:
            if self.browser is not None and not self.browser.alive:
                reason, exit_code = self.browser.devtools.reason, self.browser.process.poll()
                log.warning("browser died; starting another", reason=reason, exit_code=exit_code)
                metrics.browser_restarts.add(1)
                await self.stop()
            if self.browser is None or self._contexts is None:
                self.browser = await Browser.launch(self.timeout_s, self.capture)
                self._contexts = BrowserContextPool(
                    self.browser.devtools, self.browser.capturing, self.spare, self.documents
                )
            return self._contexts

    async def stop(self) -> None:
        """End the browser."""
        if self.browser is not None:
            await self.browser.kill()
            self.browser = self._contexts = None
