"""Exports of a run as a download: its bundle with or without screens, and its page as one file.

An export is made into a temporary file first, so that the download has a size and a damaged one is never sent. One is
made at a time; its progress is a text.
"""

import asyncio
import contextlib
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

import msgspec
import structlog

from console.bundles.capture import capture
from console.views.page import export
from console.views.page.assets import Asset
from console.views.page.bundle_source import BundleSource
from console.views.page.live_source import LiveSource
from console.views.page.run_pool import ShownRuns
from console.views.page.source import NotFound, RunSource
from dart_streams.background import cancel_tasks
from dart_streams.errors import ServiceUnavailable, UserError
from dart_streams.store import connect, sync_store
from topics import ALL

ExportKind = Literal["bundle", "screens", "page"]
KINDS: dict[str, ExportKind] = {"bundle": "bundle", "screens": "screens", "page": "page"}
SUFFIXES: dict[ExportKind, str] = {"bundle": ".dart", "screens": ".dart", "page": ".html"}
WAIT_S = 10.0
"""Bound of the wait for the broker or the store."""
KEPT_S = 600.0
"""Time that a file which nobody has fetched is kept."""
FAILED_S = 5.0
"""Time that a failure is kept for the tab that asked."""
OpensRun = Callable[[], AbstractContextManager[ShownRuns]]
UNSAFE = re.compile(r"[^\w.-]+", re.ASCII)

log = structlog.get_logger()


class ExportStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an export; ``text`` is its progress or the reason of its failure, ``bytes`` the size once ready."""

    state: Literal["making", "ready", "failed"]
    text: str = ""
    bytes: int = 0


class AbandonedExport(Exception):
    """The page ends, or the export was given up, while a thread makes it."""


class RunExport:
    """An export that is made, or ready in ``file``."""

    def __init__(self, name: str, kind: ExportKind, folder: Path) -> None:
        self.name = name
        self.kind = kind
        self.file = folder / f"export{SUFFIXES[kind]}"
        self.text = "begins"
        self.given_up = threading.Event()
        self.making: asyncio.Task[None] | None = None
        self.ready_s = 0.0
        self.fetched = False

    def report(self, text: str) -> None:
        """Note progress; raise :class:`AbandonedExport` in the thread of an export that was given up."""
        if self.given_up.is_set():
            raise AbandonedExport
        self.text = text

    def status(self) -> ExportStatus:
        """Return the present state."""
        if self.making is None or not self.making.done():
            return ExportStatus(state="making", text=self.text)
        error = None if self.making.cancelled() else self.making.exception()
        if error is None and self.file.exists():
            return ExportStatus(state="ready", bytes=self.file.stat().st_size)
        if not isinstance(error, UserError):
            log.error("export failed", run=self.name, reason=repr(error))
        text = str(error) if isinstance(error, UserError) else "the log of the page's process has the reason"
        return ExportStatus(state="failed", text=text)

    def download_name(self) -> str:
        """Return the name under which a browser keeps the file."""
        return UNSAFE.sub("_", Path(self.name).name.removesuffix(".dart")) + SUFFIXES[self.kind]


class RunExports:
    """Makes the exports that viewers ask for, one at a time; the newest file is kept until the next one."""

    def __init__(self, files: Mapping[str, Asset]) -> None:
        self.files = files
        self.current: RunExport | None = None
        self._folder: Path | None = None

    async def ask(self, identity: str, hold: OpensRun, kind: str) -> ExportStatus:
        """Return the state of an export, which begins if it was not made or was fetched.

        ``hold`` opens the run, and keeps it open while the export is made. Raises :class:`ServiceUnavailable` while
        another one is made, and :class:`NotFound` for an unknown kind.
        """
        current = self.current
        if current is not None and (current.name, current.kind) == (identity, kind) and not self._is_over(current):
            status = current.status()
            if status.state == "failed":
                self.current = None
            return status
        if kind not in KINDS:
            raise NotFound(f"there are exports of the kinds {', '.join(KINDS)}")
        if current is not None and current.making is not None and not current.making.done():
            raise ServiceUnavailable(f"{current.name} is being exported: try again once that is done")
        self.current = made = RunExport(identity, KINDS[kind], self._fresh_folder())
        made.making = asyncio.create_task(self._make(made, hold), name=f"export {identity}")
        return made.status()

    def fetch(self, identity: str, kind: str) -> RunExport:
        """Return a ready export for its download; raise :class:`NotFound` without one."""
        current = self.current
        if current is None or (current.name, current.kind) != (identity, kind) or current.status().state != "ready":
            raise NotFound("this export is not ready: begin it on the page Runs")
        current.fetched = True
        return current

    async def close(self) -> None:
        """Give up what is being made, and remove the files."""
        if self.current is not None and self.current.making is not None:
            self.current.given_up.set()
            await cancel_tasks(self.current.making)
        if self._folder is not None:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    def _is_over(self, one: RunExport) -> bool:
        """Return whether an export is asked for anew: it was fetched, or ended long ago."""
        if one.making is None or not one.making.done():
            return False
        kept_s = KEPT_S if one.file.exists() else FAILED_S
        return one.fetched or asyncio.get_running_loop().time() - one.ready_s > kept_s

    def _fresh_folder(self) -> Path:
        """Return an empty folder; the export before is removed, and its download goes on."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = Path(tempfile.mkdtemp(prefix="dart-page-"))
        return self._folder

    async def _make(self, made: RunExport, hold: OpensRun) -> None:
        try:
            with hold() as shown:
                source = shown.run.source
                if made.kind == "page":
                    await self._make_page(made, source, shown.run.reading)
                elif isinstance(source, BundleSource):
                    await asyncio.to_thread(shutil.copyfile, source.bundle.path, made.file)
                else:
                    await asyncio.to_thread(make_bundle, made, source)
        except OSError as error:
            raise UserError(f"the export can't be written: {error.strerror or error}") from None
        finally:
            made.ready_s = asyncio.get_running_loop().time()

    async def _make_page(self, made: RunExport, source: RunSource, reading: asyncio.Task[None] | None) -> None:
        """Write the page of a run: the one of its end, or that of all records by now."""
        if (written := report_of(source)) is not None:
            await asyncio.to_thread(shutil.copyfile, written, made.file)
            return

        def note(text: str) -> None:
            made.text = text

        await export.wait_until_read(source, reading, note)
        await export.write(source, self.files, made.file)


def report_of(source: RunSource) -> Path | None:
    """Return the page that a run wrote at its end; None for a bundle, and for a run that goes on or was resumed."""
    if not isinstance(source, LiveSource) or source.folder is None or source.journal().outcome == "unfinished":
        return None
    written = source.folder.path / "report.html"
    return written if written.is_file() else None


def make_bundle(made: RunExport, source: RunSource) -> None:
    """Capture a run; raise UserError if a service does not answer or the run's folder is not here."""
    config = source.config
    if not isinstance(source, LiveSource) or not Path(config.tasks.file).is_file():
        raise UserError("the run's task set is not on this machine: capture it where the run was started")
    bus, store = (msgspec.structs.replace(one, wait_s=min(one.wait_s, WAIT_S)) for one in (config.bus, config.store))
    config = msgspec.structs.replace(config, bus=bus, store=store)
    folder = source.folder.path if source.folder is not None else None
    with contextlib.suppress(AbandonedExport), contextlib.ExitStack() as stack:
        screens = None
        if made.kind == "screens":
            session = connect(config.store)
            stack.callback(session.cluster.shutdown)
            screens = sync_store(session, config)
        capture(config, made.file, ALL, screens, folder, made.report)
