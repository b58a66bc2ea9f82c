"""The runs that a page can open: those of a state folder, its bundles, and runs of the broker without a folder here."""

import asyncio
import time
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import msgspec
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from console.bundles.bundle_inputs import FILES, captured_journal, config_of
from console.launch.run_list import RunRow, facts_of, is_running, row_of, state_of
from console.runs.bundle import Bundle, BundleTooLarge
from console.runs.run_folder import PhaseLog, RunFolder, all_runs
from console.views.page.bundle_source import BundleSource
from console.views.page.live_source import LiveSource, had_topics
from console.views.page.run_catalog import ListedRun, RunCatalog, describe_source
from console.views.page.source import NotFound, RunSource
from dart_streams.config import Bus
from dart_streams.connection import auth
from dart_streams.errors import UserError
from topics import observations, rollout_orders, trajectories

BROKER_S = 3.0
"""Bound of the wait for a broker's list of topics."""
ENTRIES_MAX_AGE_S = 1.0
"""The ids in the folder are read again after this time."""
ROWS_MAX_AGE_S = 2.0
"""The list is made again after this time, for all tabs together."""
OF_A_RUN = (observations.TOPIC.name, trajectories.TOPIC.name, rollout_orders.TOPIC.name)
"""A prefix with these topics is a run's."""
OF_DEMONSTRATIONS = "-policy."

Entry = RunFolder | Path | Bus
"""A run's folder, a bundle's file, or the topics of a run without a folder."""


class FolderCatalog(RunCatalog):
    """Runs of a state folder and of the broker of the page's own run, and bundles of the folder."""

    def __init__(self, state: Path, *own: RunSource) -> None:
        self.state = state.absolute()
        self.own = own
        self._entries: tuple[float, dict[str, Entry]] = (-ENTRIES_MAX_AGE_S, {})
        self._of_broker: dict[str, Bus] = {}
        self._rows: dict[str, tuple[tuple[int, ...], RunRow]] = {}
        self._listed: tuple[float, list[ListedRun]] = (-ROWS_MAX_AGE_S, [])
        self._listing = asyncio.Lock()

    def id_of(self, source: RunSource) -> str:
        """Return the id of one of the page's own sources."""
        if isinstance(source, BundleSource):
            return self._name(source.bundle.path.absolute())
        return source.name

    def has(self, identity: str) -> bool:
        """Return whether the folder or the broker has a run or bundle of this id."""
        return identity in self.entries()

    def open(self, identity: str) -> RunSource:
        """Return a source of a run or bundle; raise UserError for one that is not there or can't be read."""
        entry = self.entries().get(identity)
        if isinstance(entry, RunFolder):
            return LiveSource(entry.config(), entry)
        if isinstance(entry, Bus):
            return LiveSource(msgspec.structs.replace(self.own[0].config, bus=entry), None)
        if entry is None:
            raise NotFound(f"no run {identity!r} here (any more): choose one on the page Runs")
        return BundleSource(Bundle(entry))

    def entries(self) -> dict[str, Entry]:
        """Return what can be opened, by id; of at most :data:`ENTRIES_MAX_AGE_S` ago."""
        now_s = time.monotonic()
        if now_s - self._entries[0] >= ENTRIES_MAX_AGE_S:
            found: dict[str, Entry] = {folder.id: folder for folder in all_runs(self.state / "runs")}
            for path in self._bundles():
                found.setdefault(self._name(path), path)
            self._entries = now_s, found
        return {**self._of_broker, **self._entries[1]}

    async def rows(self) -> list[ListedRun]:
        """Return the runs and bundles, the newest first; of at most :data:`ROWS_MAX_AGE_S` ago."""
        async with self._listing:
            if time.monotonic() - self._listed[0] >= ROWS_MAX_AGE_S:
                rows = await self._read_rows()
                self._listed = time.monotonic(), rows
            return self._listed[1]

    async def _read_rows(self) -> list[ListedRun]:
        names = await self._read_brokers()
        own = self.own[0]
        # A broker that does not answer has no runs to list, and those known from it are not removed.
        if own.kind == "run" and names.get(own.config.bus.servers) is not None:
            self._of_broker = dict(runs_without_folder(own.config.bus, names))
        entries = self.entries()
        rows = await asyncio.to_thread(lambda: [self._describe(name, entry, names) for name, entry in entries.items()])
        known = {row.id for row in rows}
        others = [(self.id_of(source), source) for source in self.own]
        rows += [describe_source(name, source) for name, source in others if name not in known]
        return sorted(rows, key=lambda row: (row.started_ms or row.captured_ms or 0, row.id), reverse=True)

    def _describe(self, identity: str, entry: Entry, names: dict[str, frozenset[str] | None]) -> ListedRun:
        """Return the row of a run or bundle; ``names`` are the topics of each broker."""
        if isinstance(entry, RunFolder):
            return describe_folder(self._row(entry), entry, names)
        if isinstance(entry, Bus):
            note = "no folder on this machine" if names.get(entry.servers) is not None else describe_absence(entry)
            return ListedRun(id=identity, kind="run", run=identity, state="on the broker", note=note)
        return describe_bundle(identity, entry, changed_ns(entry))

    def _row(self, folder: RunFolder) -> RunRow:
        """Return the row of a folder; that of a run that has ended is kept until its files change."""
        stamp = (is_running(folder), *map(changed_ns, (folder.config_file, folder.journal_file, report_of(folder))))
        if stamp[0] or self._rows.get(folder.id, (None,))[0] != stamp:
            self._rows[folder.id] = stamp, row_of(folder)
        return self._rows[folder.id][1]

    def _bundles(self) -> list[Path]:
        """Return the bundles of the state folder, and those beside the page's own."""
        runs = self.state / "runs"
        found = [*self.state.glob("*.dart"), *runs.glob("*.dart"), *runs.glob("*/*.dart")]
        for source in self.own:
            if isinstance(source, BundleSource):
                found += source.bundle.path.absolute().parent.glob("*.dart")
        return sorted({path for path in found if path.is_file() and not path.parent.is_symlink()})

    def _name(self, path: Path) -> str:
        """Return the id of a bundle: its place in the state folder, or its name."""
        return path.relative_to(self.state).as_posix() if path.is_relative_to(self.state) else path.name

    async def _read_brokers(self) -> dict[str, frozenset[str] | None]:
        """Return the names of all topics by the servers of a broker, None for one that does not answer."""
        buses = await asyncio.to_thread(self._buses)
        names = await asyncio.gather(*(read_names(bus) for bus in buses.values()))
        return dict(zip(buses, names, strict=True))

    def _buses(self) -> dict[str, Bus]:
        """Return a bus for each broker that a run names."""
        own = [source.config.bus for source in self.own if source.kind == "run"]
        folders = [bus_of(entry) for entry in self.entries().values() if isinstance(entry, RunFolder)]
        return {bus.servers: bus for bus in [*folders, *own] if bus is not None}


async def read_names(bus: Bus) -> frozenset[str] | None:
    """Return the names of a broker's topics, None if it does not answer."""
    client = AIOKafkaAdminClient(**auth.kafka_arguments(bus), client_id="ui")
    try:
        async with asyncio.timeout(BROKER_S):
            try:
                await client.start()
                return frozenset(await client.list_topics())
            finally:
                await client.close()
    except (TimeoutError, KafkaError, UserError, OSError):
        return None


def runs_without_folder(bus: Bus, names: dict[str, frozenset[str] | None]) -> Iterable[tuple[str, Bus]]:
    """Yield the runs of a broker by their topics, with their ids."""
    there = names.get(bus.servers) or frozenset()
    last = f".{observations.TOPIC.name}"
    for prefix in sorted(name.removesuffix(observations.TOPIC.name) for name in there if name.endswith(last)):
        if not prefix.endswith(OF_DEMONSTRATIONS) and all(prefix + name in there for name in OF_A_RUN):
            found = msgspec.structs.replace(bus, prefix=prefix)
            yield found.run.removeprefix("dart."), found


def bus_of(folder: RunFolder) -> Bus | None:
    """Return the bus of a run's configuration, None if that can't be read."""
    try:
        return read_bus(folder.config_file, folder.config_file.stat().st_mtime_ns)
    except (UserError, OSError):
        return None


@lru_cache(maxsize=4096)
def read_bus(config_file: Path, _changed_ns: int) -> Bus:
    """Return the bus of a run's configuration; parsed again once the file has changed."""
    return RunFolder(config_file.parent).config().bus


def report_of(folder: RunFolder) -> Path:
    """Return the place of a run's report."""
    return folder.path / "report.json"


def changed_ns(path: Path) -> int:
    """Return the time of a file's last change, of its rights too; 0 without it."""
    try:
        return path.stat().st_ctime_ns
    except OSError:
        return 0


def describe_folder(row: RunRow, folder: RunFolder, names: dict[str, frozenset[str] | None]) -> ListedRun:
    """Return the row of a run with a folder, and what is missing of it."""
    note, opens = "", True
    if (bus := bus_of(folder)) is None:
        note, opens = "its configuration can't be read", False
    elif (there := names.get(bus.servers)) is None:
        note = describe_absence(bus)
    elif not any(name.startswith(bus.prefix) for name in there):
        gone = had_topics(folder, folder.journal())
        opens = not gone
        note = f"its topics are gone from the broker at {bus.servers}" if gone else "it has no topics yet"
    facts = {name: value for name, value in msgspec.structs.asdict(row).items() if name != "run"}
    return ListedRun(id=row.run, kind="run", run=row.run, opens=opens, note=note, **facts)


def describe_absence(bus: Bus) -> str:
    """Return that a broker does not answer, and what to do."""
    return f"the broker at {bus.servers} does not answer: `dart-streams up` starts it"


@lru_cache(maxsize=4096)
def describe_bundle(identity: str, path: Path, _changed_ns: int) -> ListedRun:
    """Return the row of a bundle, or that it can't be opened; read again once the file has changed."""
    try:
        return describe_opened(identity, Bundle(path))
    except (UserError, OSError) as error:
        state = "refused" if isinstance(error, BundleTooLarge) else "damaged"
        return ListedRun(id=identity, kind="bundle", run="", state=state, opens=False, note=str(error))


def describe_opened(identity: str, bundle: Bundle) -> ListedRun:
    """Return the row of a bundle; raise UserError if it is damaged or too large."""
    journal = captured_journal(bundle) or PhaseLog(outcome="")
    report = f"{FILES}report.json"
    return ListedRun(
        id=identity,
        kind="bundle",
        run=bundle.manifest.run.removeprefix("dart."),
        state="bundle" if journal.outcome in ("", "recorded") else f"bundle: {state_of(journal)}",
        recipe=", ".join(config_of(bundle).recipe),
        captured_ms=bundle.manifest.captured_ms,
        mb=round(bundle.path.stat().st_size / 1e6),
        **msgspec.structs.asdict(facts_of(journal, bundle.file(report) if bundle.has(report) else b"")),
    )
