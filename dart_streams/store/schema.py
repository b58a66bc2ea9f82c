"""The schema of the store: its tables, its version, the migrations between versions, and how long rows are kept."""

import re
import string
from collections.abc import Callable
from importlib import resources

from cassandra.cluster import Session

from dart_streams.config import Store
from dart_streams.errors import UserError

VERSION = 2
"""The version that this program reads and writes. A change of a table raises it, with an entry of MIGRATIONS."""
MIGRATIONS: dict[int, tuple[str, ...]] = {1: ()}
"""Statements that lead from a version to the next; each may be applied again. Version 1 had no table of versions."""
VERSIONS = "schema_version"
NAME = "store"
EXPIRING = ("blobs", "steps", "trajectories", "trajectories_by_task")
"""Tables whose rows ``store.retention`` bounds. Others are needed as long as the run: they fence trainers."""
DAY_S = 86_400
TIMEOUT_S = 30.0


class SchemaIncomplete(Exception):
    """The keyspace or one of its tables does not exist (yet)."""


class SchemaVersion(UserError):
    """The keyspace has another version of the schema than this program."""


def require(session: Session, keyspace: str) -> None:
    """Return if the schema is complete and of this version; raise SchemaIncomplete or :class:`SchemaVersion`."""
    version, lacking = read_version(session, keyspace), missing_tables(session, keyspace)
    if version is not None:
        refuse_other(keyspace, version)
    if lacking:
        exists = keyspace in session.cluster.metadata.keyspaces
        what = f"lacks the tables {', '.join(lacking)}" if exists else "does not exist"
        raise SchemaIncomplete(f"keyspace {keyspace} {what}")
    if version is None:
        raise SchemaIncomplete(f"keyspace {keyspace} has no version")


def apply(session: Session, store: Store, replication: Callable[[], str], *, migrate: bool) -> None:
    """Create what is missing; with ``migrate`` bring an earlier version to this one, else refuse it.

    ``replication`` returns that of a new keyspace as a CQL value. Raises :class:`SchemaVersion` for a newer version.
    """
    keyspace, version = store.keyspace, read_version(session, store.keyspace)
    if version is not None and not (migrate and version < VERSION):
        refuse_other(keyspace, version)
    if version != VERSION or missing_tables(session, keyspace):
        exists = keyspace in session.cluster.metadata.keyspaces
        for statement in schema_statements(keyspace, "" if exists else replication())[exists:]:
            session.execute(statement, timeout=TIMEOUT_S)
            if table_of(statement) == VERSIONS and version is not None:
                write_version(session, keyspace, version)  # A migration that is cut short begins again from there.
        for step in range(version or VERSION, VERSION):
            for statement in MIGRATIONS[step]:
                session.execute(string.Template(statement).substitute(keyspace=keyspace), timeout=TIMEOUT_S)
            write_version(session, keyspace, step + 1)
        write_version(session, keyspace, VERSION)
    if store.retention.days is not None:
        set_retention(session, keyspace, round(store.retention.days * DAY_S))


def refuse_other(keyspace: str, version: int) -> None:
    """Raise :class:`SchemaVersion` unless a version of the schema is this program's."""
    if version == VERSION:
        return
    remedy = (
        "end its runs and run `dart-streams store apply`, which migrates it"
        if version < VERSION
        else "upgrade dart_streams to the version that made it, or name another store.keyspace"
    )
    raise SchemaVersion(
        f"keyspace {keyspace} has version {version} of the store's schema, and this program needs {VERSION}: {remedy}"
    )


def read_version(session: Session, keyspace: str) -> int | None:
    """Return the version of a keyspace's schema; None for one that is not there, or is being made.

    The table of versions is made before all others, so a keyspace with others alone has version 1.
    """
    existing = session.cluster.metadata.keyspaces.get(keyspace)
    tables = () if existing is None else existing.tables
    if VERSIONS not in tables:
        return 1 if any(table in tables for table in EXPIRING) else None
    row = session.execute(f"SELECT version FROM {keyspace}.{VERSIONS} WHERE name = %s", (NAME,)).one()
    return int(row[0]) if row else None


def write_version(session: Session, keyspace: str, version: int) -> None:
    """Write the version of a keyspace's schema."""
    query = f"INSERT INTO {keyspace}.{VERSIONS} (name, version) VALUES (%s, %s)"
    session.execute(query, (NAME, version), timeout=TIMEOUT_S)


def set_retention(session: Session, keyspace: str, seconds: int) -> None:
    """Have rows that are written from now on expire after ``seconds``; 0: never."""
    for table in EXPIRING:
        if retention_s(session, keyspace, table) != seconds:
            statement = f"ALTER TABLE {keyspace}.{table} WITH default_time_to_live = {seconds}"
            session.execute(statement, timeout=TIMEOUT_S)


def retention_s(session: Session, keyspace: str, table: str) -> int:
    """Return the seconds after which a table's new rows expire, from cached metadata; 0: never."""
    existing = session.cluster.metadata.keyspaces.get(keyspace)
    known = existing.tables.get(table) if existing is not None else None
    return int(known.options.get("default_time_to_live") or 0) if known is not None else 0


def missing_tables(session: Session, keyspace: str) -> list[str]:
    """Return the schema's tables that the keyspace lacks, from cached metadata."""
    existing = session.cluster.metadata.keyspaces.get(keyspace)
    tables = filter(None, map(table_of, schema_statements(keyspace)))
    return [table for table in tables if existing is None or table not in existing.tables]


def schema_statements(keyspace: str, replication: str = "") -> list[str]:
    """Return the statements of schema.cql; the keyspace comes first, with its ``replication`` as a CQL value."""
    text = resources.files("dart_streams.store").joinpath("schema.cql").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("--")]
    filled = string.Template("\n".join(lines)).substitute(keyspace=keyspace, replication=replication)
    return [statement.strip() for statement in filled.split(";") if statement.strip()]


def table_of(statement: str) -> str:
    """Return the table that a statement creates; empty if it creates none."""
    match = re.match(r"CREATE TABLE IF NOT EXISTS \w+\.(\w+)", statement)
    return match[1] if match else ""
