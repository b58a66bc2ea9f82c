"""Seats: browser contexts that episodes take in turn, with the documents they have shown.

An episode has a seat for itself, so no two that are under way share storage. A seat keeps a target for each restartable
page it has shown: once all have shown all, nothing is loaded any more.
"""

import asyncio
import contextlib

import structlog

from workers.env.backends.miniwob.capture import Capturing
from workers.env.backends.miniwob.devtools import DevTools
from workers.env.backends.miniwob.problem import in_problem
from workers.env.backends.miniwob.target import Target
from workers.env.environment import EnvironmentFault

DOCUMENT_BYTES = 10_000_000
"""Memory of a document that a seat keeps."""
MEMORY_SHARE = 0.5
"""Of the memory there is, for the documents of all seats."""
DOCUMENTS_MIN = 8
"""Documents that a seat keeps whatever the memory."""
MAX_EPISODES = 500
"""Episodes after which a target is replaced, which bounds what the browser accumulates for it."""
QUIET_S = 3.0
"""How long a free seat may take to show that it is alive. Another is taken in its place."""

log = structlog.get_logger()


def documents_kept(seats: int, memory_bytes: int) -> int:
    """Return how many documents a seat may keep, each of which saves loads; with enough memory as many as there are."""
    return max(DOCUMENTS_MIN, int(MEMORY_SHARE * memory_bytes / (max(1, seats) * DOCUMENT_BYTES)))


class PooledContext:
    """A browser context and its targets, by the document that each is kept for, least recently shown first."""

    def __init__(self, devtools: DevTools, capturing: Capturing, documents: int) -> None:
        self.devtools = devtools
        self.capturing = capturing
        self.documents = documents
        self.context = ""
        self.targets: dict[str, Target] = {}
        self.shown: Target | None = None
        self.episodes = 0

    async def open(self) -> None:
        """Create the browser context."""
        created = await self.devtools.call("Target.createBrowserContext", disposeOnDetach=True)
        self.context = created["browserContextId"]

    async def show(self, document: str) -> Target:
        """Return the target for a document, a new one if the seat has none; the longest unused makes room for it."""
        target = self.targets.pop(document, None) or Target(self.devtools, self.capturing)
        self.shown = self.targets[document] = target
        if not target.session:
            await target.open(self.context)
        while len(self.targets) > self.documents:
            await self.targets.pop(next(iter(self.targets))).close()
        return target

    async def quiet(self) -> None:
        """Stop what the last episode's document might still do; raise :class:`EnvironmentFault` if it hangs or died."""
        if self.broken:
            raise EnvironmentFault("its renderer is gone")
        if self.shown is not None and not await self.shown.evaluate_script(in_problem("quiet()"), QUIET_S):
            await self._drop(self.shown)

    async def leave(self) -> bool:
        """End an episode; return whether the seat is fit for another."""
        if self.shown is None:
            return False
        if not self.shown.faulty:
            with contextlib.suppress(EnvironmentFault):
                await self.shown.release()
                await self.shown.call("Page.resetNavigationHistory")
                if self.shown.episodes >= MAX_EPISODES:
                    await self._drop(self.shown)
        return not self.broken

    @property
    def broken(self) -> bool:
        """Whether a target had a fault, or crashed."""
        return any(target.faulty or target.session in self.devtools.crashed for target in self.targets.values())

    async def _drop(self, target: Target) -> None:
        self.targets = {name: kept for name, kept in self.targets.items() if kept is not target}
        self.shown = None
        await target.close()

    async def dispose(self) -> None:
        """Close the context with all that is in it; never raises."""
        with contextlib.suppress(EnvironmentFault):  # The browser is gone, and the context with it.
            for target in self.targets.values():
                if target.faulty and target.session not in self.devtools.crashed:
                    # A page that hangs would stay, and keep a core busy.
                    self.devtools.send("Page.crash", target.session)
            await self.devtools.call("Target.disposeBrowserContext", browserContextId=self.context)
        for target in self.targets.values():
            self.devtools.crashed.discard(target.session)


class BrowserContextPool:
    """The seats of one browser; ``spare`` of them are kept while nobody has them, none if it is 0.

    Each keeps ``documents`` documents at most.
    """

    def __init__(self, devtools: DevTools, capturing: Capturing, spare: int, documents: int) -> None:
        self.devtools = devtools
        self.capturing = capturing
        self.spare = spare
        self.documents = documents
        self._free: list[PooledContext] = []

    async def take(self, document: str) -> PooledContext:
        """Return a seat for one episode, the one that has the document if there is one."""
        while self._free:
            seat = self._free.pop(self._best(document))
            try:
                await seat.quiet()
                return seat
            except EnvironmentFault as fault:
                log.info("seat replaced", reason=str(fault))
                await seat.dispose()
            except asyncio.CancelledError:
                await seat.dispose()
                raise
        seat = PooledContext(self.devtools, self.capturing, self.documents)
        await seat.open()
        return seat

    def keeps(self, document: str) -> bool:
        """Return whether a free seat has the document."""
        return any(document in seat.targets for seat in self._free)

    def _best(self, document: str) -> int:
        """Return the place of the free seat that has the document, or of that with the fewest."""
        having = (place for place in reversed(range(len(self._free))) if document in self._free[place].targets)
        fewest = min(range(len(self._free)), key=lambda place: len(self._free[place].targets))
        return next(having, fewest)

    async def give_back(self, seat: PooledContext) -> None:
        """Keep a seat for the next episode, or dispose of it; never raises."""
        if len(self._free) < self.spare and await seat.leave() and len(self._free) < self.spare:
            self._free.append(seat)
        else:
            await seat.dispose()
