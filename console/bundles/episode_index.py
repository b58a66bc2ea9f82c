"""Index of episodes by id, in a temporary file, so that memory does not grow with the run."""

import contextlib
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from console.runs.bundle import Bundle, BundleError
from console.runs.run_log import read_events
from dart_streams.errors import UserError
from dart_streams.store import MissingBlob
from topics import observations
from topics.curated import CuratedGroup, Member
from topics.observations import Observation
from topics.trained import TrainedStep
from topics.values import BlobRef

TABLES = """
CREATE TABLE members (trajectory_id TEXT PRIMARY KEY, member BLOB) WITHOUT ROWID;
CREATE TABLE trained (trajectory_id TEXT, train_step INTEGER, PRIMARY KEY (trajectory_id, train_step)) WITHOUT ROWID;
CREATE TABLE seen (trajectory_id TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE steps (trajectory_id TEXT, step INTEGER, observation BLOB, PRIMARY KEY (trajectory_id, step));
CREATE TABLE blobs (sha256 TEXT PRIMARY KEY, data BLOB);
"""
CACHE_KIB = 16 * 1024

T = TypeVar("T")


class CurationFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Advantages of an episode and of its selected steps, and the optimizer steps that trained on it."""

    advantage: float | None = None
    step_advantages: dict[int, float] = {}
    train_steps: list[int] = []


class EpisodeIndex:
    """Context manager that removes the index's file at its end."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="dart-export-")
        self.database = sqlite3.connect(Path(self.folder.name) / "index.sqlite", isolation_level=None)
        self.database.executescript(
            f"PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -{CACHE_KIB}; BEGIN;{TABLES}"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.database.close()
        self.folder.cleanup()

    def add_groups(self, groups: Iterable[CuratedGroup]) -> None:
        """Add the online members of groups; members from the pool have another group."""
        self._insert(
            "INSERT OR REPLACE INTO members VALUES (?, ?)",
            (
                (member.trajectory_id, msgspec.json.encode(member))
                for group in groups
                for member in group.members
                if member.source == "online"
            ),
        )

    def add_trained(self, steps: Iterable[TrainedStep], *, past: bool = False) -> None:
        """Add the optimizer steps of trajectories, with ``past`` also of those that are imitated or replayed."""
        self._insert(
            "INSERT OR IGNORE INTO trained VALUES (?, ?)",
            (
                (identity, step.train_step)
                for step in steps
                for identity in (*step.trajectory_ids, *(step.past if past else ()))
            ),
        )

    def add_observations(self, observations: Iterable[Observation]) -> None:
        """Add observations; a repeat replaces the first."""
        self._insert(
            "INSERT OR REPLACE INTO steps VALUES (?, ?, ?)",
            ((step.trajectory_id, step.step, msgspec.json.encode(step)) for step in observations),
        )

    def add_blobs(self, blobs: Iterable[tuple[str, bytes]]) -> None:
        """Add screenshots by sha256."""
        self._insert("INSERT OR IGNORE INTO blobs VALUES (?, ?)", blobs)

    def _insert(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        try:
            self.database.executemany(statement, rows)
        except sqlite3.OperationalError as error:
            raise UserError(
                f"the temporary file in {self.folder.name} can't be written ({error}): TMPDIR may name another place"
            ) from None

    def is_new(self, trajectory_id: str) -> bool:
        """Return whether this is the first call for a trajectory."""
        added = self.database.execute("INSERT OR IGNORE INTO seen VALUES (?)", (trajectory_id,))
        return added.rowcount == 1

    def facts(self, trajectory_id: str) -> CurationFacts:
        """Return the advantages and optimizer steps of a trajectory."""
        key = (trajectory_id,)
        row = self.database.execute("SELECT member FROM members WHERE trajectory_id = ?", key).fetchone()
        rows = self.database.execute("SELECT train_step FROM trained WHERE trajectory_id = ? ORDER BY train_step", key)
        train_steps = [number for (number,) in rows]
        if row is None:
            return CurationFacts(train_steps=train_steps)
        member = msgspec.json.decode(row[0], type=Member)
        advantages = member.step_advantages or [member.advantage] * len(member.selected)
        return CurationFacts(
            advantage=member.advantage,
            step_advantages=dict(zip(member.selected, advantages, strict=False)),
            train_steps=train_steps,
        )

    def observations(self, trajectory_id: str) -> list[Observation]:
        """Return the observations of a trajectory in order."""
        rows = self.database.execute(
            "SELECT observation FROM steps WHERE trajectory_id = ? ORDER BY step", (trajectory_id,)
        )
        return [msgspec.json.decode(row[0], type=Observation) for row in rows]

    def blobs(self, refs: Iterable[BlobRef]) -> Iterator[tuple[str, bytes]]:
        """Yield the screenshots that the index has."""
        for sha256 in {ref.sha256 for ref in refs}:
            query = self.database.execute("SELECT data FROM blobs WHERE sha256 = ?", (sha256,))
            with contextlib.closing(query) as rows:
                if (row := rows.fetchone()) is not None:
                    yield sha256, row[0]


class IndexedEpisodes:
    """Reads steps and screenshots of a bundle from the index as :class:`SyncStore` reads those of a run."""

    def __init__(self, index: EpisodeIndex, bundle: Bundle, report: Callable[[int], None] = lambda _: None) -> None:
        if not bundle.has("blobs"):
            raise BundleError(f"{bundle.path} has no screenshots: capture the run with --blobs")
        self.index = index
        self.path = bundle.path
        index.add_observations(report_progress(read_events(bundle, [observations.TOPIC]), report))
        index.add_blobs((blob.sha256, blob.data) for blob in bundle.blobs())

    def steps_many(self, ids: Sequence[str]) -> dict[str, list[Observation]]:
        """Return the observations of episodes, in order."""
        return {identity: self.index.observations(identity) for identity in ids}

    def get_blobs(self, refs: Iterable[BlobRef]) -> dict[str, bytes]:
        """Return screenshots by sha256; raise :class:`MissingBlob` if one is missing."""
        wanted = {ref.sha256: ref for ref in refs}
        images = dict(self.index.blobs(wanted.values()))
        for sha256 in wanted.keys() - images.keys():
            raise MissingBlob(wanted[sha256], f"{self.path} does not have it")
        return images


def report_progress(items: Iterable[T], report: Callable[[int], None]) -> Iterator[T]:
    """Yield the items, and report their number so far."""
    for number, item in enumerate(items, 1):
        yield item
        report(number)
