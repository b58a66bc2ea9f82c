"""Computes the store's rows of a run from its log, and reads, removes and writes them in the store.

Steps and trajectories come from observations, the trainer's rows from ``trained``, and epochs from ``weights``.
Screenshots are not in the log; a bundle may have them.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
from cassandra.cluster import Session
from cassandra.concurrent import execute_concurrent_with_args
from cassandra.query import SimpleStatement

from dart_streams.episodes.trajectory_summary import Incomplete, broken_trajectory, summarize
from dart_streams.store import statements
from dart_streams.store.blobs import split_chunks
from topics import observations, trained, weights
from topics.observations import Observation
from topics.trained import TrainedStep
from topics.transitions import is_ignored
from topics.weights import WeightVersion

READ = (observations.TOPIC, trained.TOPIC, weights.TOPIC)
COLUMNS: dict[str, tuple[str, ...]] = {
    "steps": ("run", "trajectory_id", "step", "observation"),
    "trajectories": ("run", "id", "trajectory"),
    "trajectories_by_task": ("run", "task_id", "finished_at", "id", "trajectory"),
    "trained": ("run", *statements.TRAINED_COLUMNS),
    "epochs": ("run", "model_id", "epoch"),
}
"""Columns of each table, in the order of a row's values."""
KEYS = {"steps": 3, "trajectories": 2, "trajectories_by_task": 4, "trained": 2, "epochs": 2}
"""Number of first columns that are the key."""
PARTITION_KEYS = {"steps": 2, "trajectories": 2, "trajectories_by_task": 2, "trained": 1, "epochs": 2}
"""Number of first columns that are the partition key."""
BITS = 128
PAGE = 500
ROWS_PER_WRITE = 256
CONCURRENCY = 64


class ProjectedRow(NamedTuple):
    """A row of a table; times are epoch milliseconds."""

    table: str
    values: tuple[Any, ...]

    @property
    def key(self) -> tuple[Any, ...]:
        """The row's primary key."""
        return self.values[: KEYS[self.table]]


def project_rows(run: str, events: Iterable[Any]) -> Iterator[ProjectedRow]:
    """Yield the rows of a run from its events in the log's order; a later row replaces one of the same key."""
    under_way: dict[str, dict[int, Observation]] = defaultdict(dict)
    ended: set[str] = set()
    epochs: dict[str, int] = {}
    trained_epoch = -1
    for event in events:
        match event:
            case Observation():
                yield ProjectedRow("steps", statements.step_values(run, event))
                if event.trajectory_id in ended:
                    continue  # a repeat
                under_way[event.trajectory_id][event.step] = event
                if event.end is not None:
                    ended.add(event.trajectory_id)
                    steps = under_way.pop(event.trajectory_id)
                    yield from trajectory_rows(run, [steps[number] for number in sorted(steps)])
            case TrainedStep() if not is_ignored(event.epoch, trained_epoch):
                trained_epoch = event.epoch
                yield ProjectedRow("trained", (run, *(getattr(event, name) for name in statements.TRAINED_COLUMNS)))
            case WeightVersion():
                epochs[event.model_id] = max(event.epoch, epochs.get(event.model_id, 0))
    for model_id, epoch in epochs.items():
        yield ProjectedRow("epochs", (run, model_id, epoch))


def trajectory_rows(run: str, steps: list[Observation]) -> list[ProjectedRow]:
    """Return the recorder's rows of a trajectory that has ended."""
    try:
        trajectory = summarize(steps)
    except Incomplete as gap:
        last = steps[-1]
        trajectory = broken_trajectory(last, f"trajectory {last.trajectory_id}: {gap}")
    text, identity = statements.trajectory_text(trajectory), trajectory.trajectory_id
    return [
        ProjectedRow("trajectories", (run, identity, text)),
        ProjectedRow("trajectories_by_task", (run, trajectory.task_id, trajectory.finished_ms, identity, text)),
    ]


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Number and digest of a table's rows; the digest does not depend on their order."""

    table: str
    rows: int
    digest: str


def digest_tables(rows: Iterable[ProjectedRow]) -> list[Table]:
    """Return the digest of each table; a row replaces an earlier one of the same key."""
    hashes: dict[str, dict[tuple[Any, ...], int]] = {table: {} for table in COLUMNS}
    for row in rows:
        hashes[row.table][row.key] = hash_of(row.values)
    return [
        Table(table=table, rows=len(of_table), digest=f"{sum(of_table.values()) % (1 << BITS):032x}")
        for table, of_table in hashes.items()
    ]


def hash_of(values: tuple[Any, ...]) -> int:
    """Return a hash of a row's values; maps have no order, and the database stores an empty collection as null."""
    ordered = [dict(sorted(value.items())) if isinstance(value, dict) else value for value in values]
    nullable = [None if value in ([], {}) else value for value in ordered]
    return int.from_bytes(blake2b(msgspec.json.encode(nullable), digest_size=BITS // 8).digest())


def stored_rows(session: Session, run: str) -> Iterator[ProjectedRow]:
    """Yield a run's rows in the store, without claims, which are in no log."""
    claims_key = (run, statements.CLAIMS_STEP)
    return (row for row in all_rows(session, run) if row.table != "trained" or row.key != claims_key)


def all_rows(session: Session, run: str) -> Iterator[ProjectedRow]:
    """Yield all rows of a run, page by page."""
    for table, columns in COLUMNS.items():
        query = f"SELECT {', '.join(columns)} FROM {table} WHERE run = %s ALLOW FILTERING"
        for values in session.execute(SimpleStatement(query, fetch_size=PAGE), (run,), timeout=None):
            yield ProjectedRow(table, tuple(map(plain_value, values)))


def plain_value(value: Any) -> Any:
    """Return a database value as the projection has it, times as epoch milliseconds."""
    if isinstance(value, datetime):  # the driver's times are naive UTC
        return round(value.replace(tzinfo=UTC).timestamp() * 1000)
    return dict(value) if hasattr(value, "items") else value


def wipe(session: Session, run: str) -> int:
    """Remove all rows of a run except screenshots, which runs share, and return their number."""
    removed = 0
    for table, rows in itertools.groupby(all_rows(session, run), key=lambda row: row.table):
        size = PARTITION_KEYS[table]
        partitions = Counter(row.values[:size] for row in rows)
        where = " AND ".join(f"{column} = ?" for column in COLUMNS[table][:size])
        write(session, f"DELETE FROM {table} WHERE {where}", partitions)
        removed += partitions.total()
    return removed


def rebuild(session: Session, rows: Iterable[ProjectedRow]) -> int:
    """Write rows and return their number; a row replaces an earlier one of the same key."""
    written = 0
    pending: dict[tuple[str, tuple[Any, ...]], ProjectedRow] = {}
    for row in rows:
        pending[row.table, row.key] = row
        if len(pending) >= ROWS_PER_WRITE:
            written += flush(session, pending)
    return written + flush(session, pending)


def flush(session: Session, pending: dict[tuple[str, tuple[Any, ...]], ProjectedRow]) -> int:
    """Write the pending rows, and return their number."""
    for table, columns in COLUMNS.items():
        values = [row.values for (name, _), row in pending.items() if name == table]
        marks = ", ".join("?" for _ in columns)
        write(session, f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", values)
    number = len(pending)
    pending.clear()
    return number


def write(session: Session, query: str, values: Collection[tuple[Any, ...]]) -> None:
    """Execute a statement concurrently for each of the values; raise the first failure."""
    if values:
        execute_concurrent_with_args(session, session.prepare(query), values, concurrency=CONCURRENCY)


def restore_blobs(session: Session, blobs: Iterable[tuple[str, bytes]]) -> int:
    """Write screenshots under their sha256, and return their number."""
    count = 0
    for sha256, data in blobs:
        write(session, statements.PUT_CHUNK, [(sha256, *piece) for piece in enumerate(split_chunks(data))])
        count += 1
    return count
