"""The runs that a page reads at a time: its own ones always, and a few beside them, opened on demand.

A further run closes the least recently asked for, with its consumer and session, once no request uses it any more.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import structlog

from console.views.page.run_catalog import RunCatalog
from console.views.page.source import NotFound, RunSource
from console.views.page.views import PageViews, Query
from dart_streams.background import cancel_tasks
from dart_streams.deadline import Deadline
from dart_streams.errors import ServiceUnavailable, UserError

MOST_BESIDE = 2
"""Runs that are read beside the page's own: each has its whole fold in memory."""
READ_S = 2.0
"""Time after its opening in which requests wait for a run to be read."""
POLL_S = 0.05
CLOSE_S = 5.0
"""Time that the end of the page leaves to requests of further runs."""
MAX_NAMED = 80
"""Characters of an unknown id that an error repeats."""

log = structlog.get_logger()


class OpenRun:
    """A run that is read. ``gone`` is the reason why it is closed, ``users`` the requests and tabs that use it."""

    def __init__(self, identity: str, source: RunSource) -> None:
        self.id = identity
        self.source = source
        self.reading: asyncio.Task[None] | None = None
        self.asked = 0
        self.users = 0
        self.unused = asyncio.Event()
        self.gone = ""
        self._fresh = Deadline(READ_S)

    @property
    def is_fresh(self) -> bool:
        """Whether it was opened beside the page's own not long ago, and is not read yet."""
        reading = self.reading
        return not (reading is None or reading.done() or self.source.progress.ready or self._fresh.expired)


class ShownRuns(NamedTuple):
    """The run of a request, with the one that it is compared with, and their views."""

    run: OpenRun
    runs: list[OpenRun]
    views: PageViews

    @property
    def sources(self) -> list[RunSource]:
        """Their sources, the shown one first."""
        return [run.source for run in self.runs]

    @property
    def gone(self) -> str:
        """The reason why they are closed; empty while they are open."""
        return next((run.gone for run in self.runs if run.gone), "")

    @property
    def is_read(self) -> bool:
        """Whether all existing records of each are read."""
        return all(source.progress.ready for source in self.sources)

    def note_viewer(self) -> None:
        """Note a viewer in each source."""
        for source in self.sources:
            source.note_viewer()

    async def wait_read(self) -> None:
        """Wait until runs that were just opened are read, so that their first view has all records if they are few."""
        while True:
            if not any(run.is_fresh for run in self.runs):
                return
            await asyncio.sleep(POLL_S)


class RunPool:
    """Opens runs of a catalog by the parameters ``run`` and ``against`` of requests."""

    def __init__(self, own: Sequence[RunSource], catalog: RunCatalog) -> None:
        self.catalog = catalog
        self.own = [OpenRun(catalog.id_of(source), source) for source in own]
        self.first = self.own[0]
        self.beside: dict[str, OpenRun] = {}
        self._turns = itertools.count(1)
        self._views: dict[tuple[str, ...], PageViews] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def is_first(self, query: Query) -> bool:
        """Return whether a request is of the run that the page was started for."""
        return query.get("run", "") in ("", self.first.id)

    @contextlib.contextmanager
    def use(self, query: Query) -> Iterator[ShownRuns]:
        """Yield the runs of a request, which stay open meanwhile; raise UserError for one that can't be opened."""
        run = self._get(query["run"]) if query.get("run") else self.first
        own = self.own[1:] if run is self.first else []
        against = [self._get(query["against"])] if query.get("against") else own
        runs = [run, *(one for one in against if one is not run)]
        key = tuple(one.id for one in runs)
        if key not in self._views:
            self._views[key] = PageViews(*(one.source for one in runs))
        for one in runs:
            one.users += 1
        try:
            yield ShownRuns(run, runs, self._views[key])
        finally:
            for one in runs:
                one.users -= 1
                if not one.users:
                    one.unused.set()

    def close_removed(self) -> None:
        """Close the runs that the catalog no longer has."""
        for run in [one for one in self.beside.values() if not self.catalog.has(one.id)]:
            self._drop(run, f"{run.id} was removed: choose another run")

    async def close(self) -> None:
        """Close all runs but the page's own, whose reader closes them."""
        for run in list(self.beside.values()):
            self._drop(run, "the page ends")
        if closing := list(self._closing):
            await asyncio.wait(closing, timeout=CLOSE_S)
            await cancel_tasks(*closing)

    def _get(self, identity: str) -> OpenRun:
        """Return an open run, opened if it was not."""
        for run in self.own:
            if run.id == identity:
                return run
        self.close_removed()
        if identity not in self.beside:
            if not self.catalog.has(identity):
                raise NotFound(f"no run {identity[:MAX_NAMED]!r} here (any more): choose one on the page Runs")
            self._open(identity)
        run = self.beside[identity]
        run.asked = next(self._turns)
        if run.reading is not None and run.reading.done():
            self._drop(run, f"{identity} could not be read")
            self._raise_failure(run.id, run.reading)
        return run

    def _open(self, identity: str) -> None:
        run = OpenRun(identity, self.catalog.open(identity))
        run.reading = asyncio.create_task(run.source.run(), name=f"read {identity}")
        self.beside[identity] = run
        while len(self.beside) > MOST_BESIDE:
            oldest = min((one for one in self.beside.values() if one is not run), key=lambda one: one.asked)
            reason = f"the page reads {MOST_BESIDE} runs beside its own, and {identity} was opened since"
            self._drop(oldest, f"{oldest.id} was closed: {reason}. Load this page again to open it again.")

    def _raise_failure(self, identity: str, reading: asyncio.Task[None]) -> None:
        error = None if reading.cancelled() else reading.exception()
        if isinstance(error, UserError):
            raise error
        log.error("reading a run failed", run=identity, reason=repr(error))
        raise ServiceUnavailable(f"{identity} could not be read: the page's log has the reason; load it again")

    def _drop(self, run: OpenRun, reason: str) -> None:
        """Forget a run; it is closed once its last user has left."""
        run.gone = reason
        del self.beside[run.id]
        self._views = {key: views for key, views in self._views.items() if run.id not in key}
        closing = asyncio.create_task(self._close(run), name=f"close {run.id}")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _close(self, run: OpenRun) -> None:
        try:
            while run.users:
                run.unused.clear()
                await run.unused.wait()
        finally:
            if run.reading is not None:
                await cancel_tasks(run.reading)
            await run.source.close()
