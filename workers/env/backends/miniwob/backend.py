"""The ``miniwob`` backend: browsers with pooled contexts, and an environment for each episode."""

import asyncio
import math
from pathlib import Path

from dart_streams.config import Config
from dart_streams.config.hardware import memory_limit
from dart_streams.config.tasks import Task
from workers.env.backends.miniwob.context_pool import max_documents
from workers.env.backends.miniwob.own_pages import OwnPage
from workers.env.backends.miniwob.page import ANY, MiniwobPage, document_of, page_folder
from workers.env.backends.miniwob.pooled_browser import PooledBrowser


class MiniwobBackend:
    """Opens pages in its browsers; a slot whose page or browser crashed recovers with the next :meth:`open`.

    Each browser has its share of the episodes, so that a browser under replacement delays only those.
    """

    def __init__(self, config: Config) -> None:
        self.own = own = config.env.miniwob
        slots = config.env.slots
        count = min(own.browsers, slots)
        self.share = math.ceil(slots / count)
        spare = 0 if own.isolation == "context" else self.share
        documents = max_documents(slots, memory_limit())
        pages = (page_folder().parent, *([Path(own.pages_folder)] if own.pages_folder else []))
        self.browsers = [PooledBrowser(own, pages, spare, documents) for _ in range(count)]

    async def start(self) -> None:
        """Start the browsers; raise :class:`~dart_streams.errors.ServiceUnavailable` if that is impossible."""
        for browser in self.browsers:
            await browser.start()

    async def open(self, task: Task) -> MiniwobPage:
        """Return a page for one episode; raise :class:`EnvironmentFault` if the browser refuses."""
        own = task.file or self.own.own_page(task.page)
        document = ANY if own else document_of(task.page, self.own.isolation)
        browser = self._browser_for(document)
        context = await browser.take(document)
        return (OwnPage if own else MiniwobPage)(browser, context, self.own)

    async def stop(self) -> None:
        """End the browsers."""
        await asyncio.gather(*(browser.stop() for browser in self.browsers))

    def _browser_for(self, document: str) -> PooledBrowser:
        """Return the browser with the fewest episodes, preferably one with room that has the document."""
        room = [browser for browser in self.browsers if browser.under_way < self.share] or self.browsers
        having = [browser for browser in room if browser.keeps(document)]
        return min(having or room, key=lambda browser: browser.under_way)
