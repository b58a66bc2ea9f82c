"""The process-wide factory of pages: one browser, restarted when it died, a browser context for each open page."""

import asyncio

import structlog

from dart_streams.config import Config
from workers.env.environment import EnvironmentFault
from workers.env.miniwob.browser import Browser
from workers.env.miniwob.page import MiniwobPage

log = structlog.get_logger()


class MiniwobBackend:
    """Opens pages in the one browser; a slot whose page or browser crashed heals with the next :meth:`open`."""

    def __init__(self, config: Config) -> None:
        self.timeout_s = config.env.call_timeout_s
        self.fresh_contexts = config.env.fresh_contexts
        self.browser: Browser | None = None
        self._launching = asyncio.Lock()
        self._free: list[MiniwobPage] = []

    async def start(self) -> None:
        """Start the browser; raise :class:`~dart_streams.errors.ServiceUnavailable` if that is impossible."""
        await self._alive_browser()

    async def open(self) -> MiniwobPage:
        """Return a page that no open episode shares; raise :class:`EnvironmentFault` if the browser refuses."""
        browser = await self._alive_browser()
        if self._free:
            return self._free.pop()
        try:
            return await MiniwobPage.open(browser.devtools, None if self.fresh_contexts else self._free.append)
        except KeyError as missing:
            raise EnvironmentFault(f"the browser's answer lacks {missing}") from None

    async def stop(self) -> None:
        """End the browser."""
        if self.browser is not None:
            await self.browser.end()
            self.browser = None

    async def _alive_browser(self) -> Browser:
        async with self._launching:
            if self.browser is not None and not self.browser.alive:
                log.warning("browser died; starting another", exit_code=self.browser.process.poll())
                await self.browser.end()
                self.browser = None
                self._free.clear()
            if self.browser is None:
                self.browser = await Browser.launch(self.timeout_s)
            return self.browser
