"""The process-wide pool of pages in one browser, which is restarted when it has died."""

import asyncio

import structlog

from dart_streams.config import Config
from dart_streams.tasks import Task
from workers.env import metrics
from workers.env.environment import EnvironmentFault
from workers.env.miniwob.browser import Browser
from workers.env.miniwob.page import MiniwobPage

SPARE_PAGES = 2
"""Idle pages kept per slot for an episode of their document: each costs 20 MB, and saves loading the document."""

log = structlog.get_logger()


class MiniwobBackend:
    """Opens pages in the browser; a slot whose page or browser crashed recovers with the next :meth:`open`."""

    def __init__(self, config: Config) -> None:
        self.timeout_s = config.env.miniwob.call_timeout_s
        self.isolation = config.env.miniwob.isolation
        self.last_screen = config.env.miniwob.last_screen
        self.spare = SPARE_PAGES * config.env.slots
        self.browser: Browser | None = None
        self._launch_lock = asyncio.Lock()
        self._idle: list[MiniwobPage] = []
        self._keep = None if self.isolation == "context" else self._idle.append

    async def start(self) -> None:
        """Start the browser; raise :class:`~dart_streams.errors.ServiceUnavailable` if that is impossible."""
        await self._running_browser()

    async def open(self, task: Task) -> MiniwobPage:
        """Return a page that no open episode shares; raise :class:`EnvironmentFault` if the browser refuses."""
        browser = await self._running_browser()
        if page := self._take_idle(task.page):
            return page
        try:
            page = MiniwobPage(browser.devtools, self.isolation, self._keep, self.last_screen)
            await page.open()
            return page
        except KeyError as missing:
            raise EnvironmentFault(f"the browser's response lacks {missing}") from None

    def _take_idle(self, name: str) -> MiniwobPage | None:
        """Return an idle page, preferably with document ``name``; None if there is room for a new one."""
        for place in reversed(range(len(self._idle))):
            if self.isolation == "document" or self._idle[place].page == name:
                return self._idle.pop(place)
        return self._idle.pop(0) if len(self._idle) >= self.spare else None

    async def stop(self) -> None:
        """End the browser."""
        if self.browser is not None:
            await self.browser.kill()
            self.browser = None

    async def _running_browser(self) -> Browser:
        async with self._launch_lock:
            if self.browser is not None and not self.browser.alive:
                log.warning("browser died; starting another", exit_code=self.browser.process.poll())
                metrics.browser_restarts.add(1)
                await self.browser.kill()
                self.browser = None
                self._idle.clear()
            if self.browser is None:
                self.browser = await Browser.launch(self.timeout_s)
            return self.browser
