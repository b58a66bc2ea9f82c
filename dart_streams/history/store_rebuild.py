"""Reads a run's rows from the store, removes them, and writes them again from the log (see ``projection``)."""

import itertools
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from cassandra.cluster import Session
from cassandra.concurrent import execute_concurrent_with_args
from cassandra.query import SimpleStatement

from dart_streams.history.projection import COLUMNS, ProjectedRow
from dart_streams.store import statements
from dart_streams.store.blobs import chunks

PAGE = 500
AT_ONCE = 256
CONCURRENCY = 64
PARTITION_KEYS = {"steps": 2, "trajectories": 2, "trajectories_by_task": 2, "trained": 1, "epochs": 2}
"""How many of a table's first columns are its partition key."""


def stored(session: Session, run: str) -> Iterator[ProjectedRow]:
    """Yield a run's rows as the store has them, page by page."""
    for table, columns in COLUMNS.items():
        query = f"SELECT {', '.join(columns)} FROM {table} WHERE run = %s ALLOW FILTERING"
        for values in session.execute(SimpleStatement(query, fetch_size=PAGE), (run,), timeout=None):
            yield ProjectedRow(table, tuple(map(plain, values)))


def plain(value: Any) -> Any:
    """Return a value as the projection has it: a time as epoch milliseconds, an empty collection not as None."""
    if isinstance(value, datetime):  # the driver's times are naive UTC
        return round(value.replace(tzinfo=UTC).timestamp() * 1000)
    return dict(value) if hasattr(value, "items") else value


def wipe(session: Session, run: str) -> int:
    """Remove all rows of a run but its screenshots, which runs share; return how many there were."""
    removed = 0
    for table, found in itertools.groupby(stored(session, run), key=lambda row: row.table):
        size = PARTITION_KEYS[table]
        partitions: dict[tuple[Any, ...], int] = {}
        for row in found:
            partitions[row.values[:size]] = partitions.get(row.values[:size], 0) + 1
        where = " AND ".join(f"{column} = ?" for column in COLUMNS[table][:size])
        write(session, f"DELETE FROM {table} WHERE {where}", partitions)
        removed += sum(partitions.values())
    return removed


def rebuild(session: Session, rows: Iterable[ProjectedRow]) -> int:
    """Write rows, and return how many were written; a row with the same key replaces the one before."""
    written = 0
    pending: dict[tuple[str, tuple[Any, ...]], ProjectedRow] = {}
    for row in rows:
        pending[row.table, row.key] = row
        if len(pending) >= AT_ONCE:
            written += flush(session, pending)
    return written + flush(session, pending)


def flush(session: Session, pending: dict[tuple[str, tuple[Any, ...]], ProjectedRow]) -> int:
    """Write the pending rows, and return their number when they are durable."""
    for table, columns in COLUMNS.items():
        values = [row.values for (name, _), row in pending.items() if name == table]
        marks = ", ".join("?" for _ in columns)
        write(session, f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", values)
    number = len(pending)
    pending.clear()
    return number


def write(session: Session, query: str, values: Iterable[tuple[Any, ...]]) -> None:
    """Execute a statement for each of the values, concurrently; raise the first failure."""
    listed = list(values)
    if listed:
        execute_concurrent_with_args(
            session, session.prepare(query), listed, concurrency=CONCURRENCY, raise_on_first_error=True
        )


def restore_blobs(session: Session, blobs: Iterable[tuple[str, bytes]]) -> int:
    """Write screenshots under their sha256, and return how many."""
    count = 0
    for sha256, data in blobs:
        pieces = [(sha256, number, piece) for number, piece in enumerate(chunks(data))]
        write(session, statements.PUT_CHUNK, pieces)
        count += 1
    return count
