"""The process-wide factory of pages: one browser, restarted when it died, and the pages that can be used again."""

import asyncio

import structlog

from dart_streams.config import Config
from dart_streams.tasks import Task
from workers.env import metrics as instruments
from workers.env.environment import EnvironmentFault
from workers.env.miniwob.browser import Browser
from workers.env.miniwob.page import MiniwobPage

SPARE_PAGES = 2
"""So many pages for each slot wait for an episode of their document: one costs 20 MB, a load of the document saved."""

log = structlog.get_logger()


class MiniwobBackend:
    """Opens pages in the one browser; a slot whose page or browser crashed heals with the next :meth:`open`."""

    def __init__(self, config: Config) -> None:
        self.timeout_s = config.env.miniwob.call_timeout_s
        self.isolation = config.env.miniwob.isolation
        self.last_screen = config.env.miniwob.last_screen
        self.spare = SPARE_PAGES * config.env.slots
        self.browser: Browser | None = None
        self._launching = asyncio.Lock()
        self._free: list[MiniwobPage] = []
        self._keep = None if self.isolation == "context" else self._free.append

    async def start(self) -> None:
        """Start the browser; raise :class:`~dart_streams.errors.ServiceUnavailable` if that is impossible."""
        await self._alive_browser()

    async def open(self, task: Task) -> MiniwobPage:
        """Return a page that no open episode shares; raise :class:`EnvironmentFault` if the browser refuses."""
        browser = await self._alive_browser()
        if page := self._take(task.page):
            return page
        try:
            return await MiniwobPage.open(browser.devtools, self.isolation, self._keep, self.last_screen)
        except KeyError as missing:
            raise EnvironmentFault(f"the browser's answer lacks {missing}") from None

    def _take(self, name: str) -> MiniwobPage | None:
        """Return a free page, best one that shows page ``name``; None if a new one is worth its memory."""
        for place in reversed(range(len(self._free))):
            if self.isolation == "document" or self._free[place].page == name:
                return self._free.pop(place)
        return self._free.pop(0) if len(self._free) >= self.spare else None

    async def stop(self) -> None:
        """End the browser."""
        if self.browser is not None:
            await self.browser.end()
            self.browser = None

    async def _alive_browser(self) -> Browser:
        async with self._launching:
            if self.browser is not None and not self.browser.alive:
                log.warning("browser died; starting another", exit_code=self.browser.process.poll())
                instruments.browser_restarts.add(1)
                await self.browser.end()
                self.browser = None
                self._free.clear()
            if self.browser is None:
                self.browser = await Browser.launch(self.timeout_s)
            return self.browser
