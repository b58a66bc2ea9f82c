"""Browser contexts that episodes take in turn, with the documents they have shown.

Each episode has a context to itself, so concurrent episodes share no storage. A context keeps a target for each
restartable page it has shown; once all contexts have shown all pages, nothing is loaded any more.
"""

import contextlib

from workers.env.backends.miniwob.capture import Screenshots
from workers.env.backends.miniwob.devtools import DevTools
from workers.env.backends.miniwob.page_scripts import in_problem
from workers.env.backends.miniwob.target import Target
from workers.env.environment import EnvironmentFault

DOCUMENT_BYTES = 10_000_000
"""Memory of a kept document."""
MEMORY_SHARE = 0.5
"""Share of the memory for the documents of all contexts."""
DOCUMENTS_MIN = 8
"""Documents that a context keeps on any machine."""
MAX_EPISODES = 500
"""Episodes after which a target is replaced, which bounds the browser's memory for it."""
QUIET_S = 3.0
"""Time limit for a free context to respond; then another is taken."""


def max_documents(contexts: int, memory_bytes: int) -> int:
    """Return the number of documents that each context may keep."""
    return max(DOCUMENTS_MIN, int(MEMORY_SHARE * memory_bytes / (max(1, contexts) * DOCUMENT_BYTES)))


class PooledContext:
    """A browser context and its targets by document, least recently shown first."""

    def __init__(self, devtools: DevTools, capturing: Screenshots, documents: int) -> None:
        self.devtools = devtools
        self.capturing = capturing
        self.documents = documents
        self.context = ""
        self.targets: dict[str, Target] = {}
        self.shown: Target | None = None
        self.episodes = 0

    async def begin(self, document: str) -> None:
        """Show a document to a new episode; raise :class:`EnvironmentFault` if the context hangs or died."""
        if self.context:
            await self._quiet()
        else:
            await self._open()
        await self.show(document)

    async def _open(self) -> None:
        created = await self.devtools.call("Target.createBrowserContext", disposeOnDetach=True)
        self.context = created["browserContextId"]

    async def show(self, document: str) -> Target:
        """Return the target of a document, a new one if there is none; the least recently shown makes room for it."""
        target = self.targets.pop(document, None) or Target(self.devtools, self.capturing)
        self.shown = self.targets[document] = target
        if not target.session:
            await target.open(self.context)
        while len(self.targets) > self.documents:
            await self.targets.pop(next(iter(self.targets))).close()
        return target

    async def _quiet(self) -> None:
        """Stop the scripts of the last episode's document."""
        if self.broken:
            raise EnvironmentFault("its renderer is gone")
        if self.shown is not None and not await self.shown.evaluate_script(in_problem("quiet()"), QUIET_S):
            await self._drop(self.shown)

    async def leave(self) -> bool:
        """End an episode; return whether the context is fit for another."""
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
        """Whether a target had a fault or crashed."""
        return any(target.faulty or target.session in self.devtools.crashed for target in self.targets.values())

    async def _drop(self, target: Target) -> None:
        self.targets = {name: other for name, other in self.targets.items() if other is not target}
        self.shown = None
        await target.close()

    async def dispose(self) -> None:
        """Close the context and its targets; never raises."""
        with contextlib.suppress(EnvironmentFault):  # The browser is gone, and the context with it.
            for target in self.targets.values():
                if target.faulty and target.session not in self.devtools.crashed:
                    # A page that hangs would stay, and keep a core busy.
                    self.devtools.send("Page.crash", target.session)
            await self.devtools.call("Target.disposeBrowserContext", browserContextId=self.context)
        for target in self.targets.values():
            self.devtools.crashed.discard(target.session)
