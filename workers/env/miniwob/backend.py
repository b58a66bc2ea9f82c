"""The backend: a browser, its seats, and an environment for each episode; a browser that died is replaced."""

import asyncio

import structlog

from dart_streams.config import Config
from dart_streams.tasks import Task
from workers.env import metrics
from workers.env.environment import EnvironmentFault
from workers.env.miniwob.browser import Browser
from workers.env.miniwob.memory import memory_limit
from workers.env.miniwob.page import MiniwobPage, document_of
from workers.env.miniwob.seats import Seats, documents_kept

log = structlog.get_logger()


class MiniwobBackend:
    """Opens pages in the browser; a slot whose page or browser crashed recovers with the next :meth:`open`."""

    def __init__(self, config: Config) -> None:
        self.own = config.env.miniwob
        self.spare = 0 if self.own.isolation == "context" else config.env.slots
        self.documents = documents_kept(config.env.slots, memory_limit())
        self.browser: Browser | None = None
        self._seats: Seats | None = None
        self._launch_lock = asyncio.Lock()

    async def start(self) -> None:
        """Start the browser; raise :class:`~dart_streams.errors.ServiceUnavailable` if that is impossible."""
        await self._running_seats()

    async def open(self, task: Task) -> MiniwobPage:
        """Return a page that no open episode shares; raise :class:`EnvironmentFault` if the browser refuses."""
        seats = await self._running_seats()
        try:
            seat = await seats.take(document_of(task.page, self.own.isolation))
        except KeyError as missing:
            raise EnvironmentFault(f"the browser's response lacks {missing}") from None
        return MiniwobPage(seats, seat, self.own.isolation, self.own.last_screen)

    async def stop(self) -> None:
        """End the browser."""
        if self.browser is not None:
            await self.browser.kill()
            self.browser = self._seats = None

    async def _running_seats(self) -> Seats:
        async with self._launch_lock:
            if self.browser is not None and not self.browser.alive:
                reason, exit_code = self.browser.devtools.reason, self.browser.process.poll()
                log.warning("browser died; starting another", reason=reason, exit_code=exit_code)
                metrics.browser_restarts.add(1)
                await self.stop()
            if self.browser is None or self._seats is None:
                self.browser = await Browser.launch(self.own.call_timeout_s, self.own.capture)
                self._seats = Seats(self.browser.devtools, self.browser.capturing, self.spare, self.documents)
            return self._seats
