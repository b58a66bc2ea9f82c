"""Versions of the store's schema, their migration, and the time that rows are kept, on a real Cassandra."""

import asyncio
import string
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from cassandra.cluster import Session

from console.runs import run_folder
from dart_streams.config import Store
from dart_streams.config.connections import StoreRetention
from dart_streams.store import AsyncStore, MissingBlob, SyncStore, connect, create_schema, schema, sessions
from dart_streams.store.schema import SchemaVersion
from dart_streams.store.statements import PUT_CHUNK
from tests import events
from tests.command_line import invoke
from tests.stored_rows import cluster_of
from tests.waiting import wait_until

FIRST = Path(__file__).with_name("schema_v1.cql")


@pytest.fixture
def admin(services) -> Iterator[Session]:
    with cluster_of(services.config().store) as cluster:
        yield cluster.connect()


def make_first(admin: Session, keyspace: str) -> None:
    """Make the schema of version 1, with the rows of a step and its screenshot."""
    text = "\n".join(line for line in FIRST.read_text().splitlines() if not line.startswith("--"))
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    for statement in string.Template(text).substitute(keyspace=keyspace, replication=replication).split(";"):
        if statement.strip():
            admin.execute(statement, timeout=60)
    observation = msgspec.json.encode(events.observation(0, trajectory_id="t")).decode()
    admin.execute(
        f"INSERT INTO {keyspace}.steps (run, trajectory_id, step, observation) VALUES ('r', 't', 0, %s)", (observation,)
    )


def apply_command(services, keyspace: Store, folder: Path):
    file = folder / "deployment.toml"
    run_folder.write_toml(file, msgspec.structs.replace(services.config(), store=keyspace))
    return invoke("store", "apply", "--config", file)


def version_in(admin: Session, keyspace: Store) -> int:
    [[version]] = admin.execute(f"SELECT version FROM {keyspace.keyspace}.schema_version WHERE name = 'store'")
    return version


def test_a_store_of_the_previous_version_is_refused_then_migrated(services, keyspace, admin, tmp_path):
    make_first(admin, keyspace.keyspace)
    for opens in (connect, create_schema):
        with pytest.raises(SchemaVersion, match=r"has version 1 .* needs 2: end its runs and run `dart-streams store"):
            opens(keyspace)
    assert apply_command(services, keyspace, tmp_path).exit_code == 0
    assert version_in(admin, keyspace) == schema.VERSION == 2
    session = connect(keyspace)
    try:
        [step] = SyncStore(session, "r", 0).steps_many(["t"])["t"]
        assert step == events.observation(0, trajectory_id="t"), "its rows are as they were"
    finally:
        session.cluster.shutdown()
    create_schema(keyspace)
    assert apply_command(services, keyspace, tmp_path).exit_code == 0


def test_a_store_of_a_newer_version_is_left_alone(services, keyspace, admin, tmp_path):
    create_schema(keyspace)
    admin.execute(f"UPDATE {keyspace.keyspace}.schema_version SET version = 9 WHERE name = 'store'")
    with pytest.raises(SchemaVersion, match=r"has version 9 .* needs 2: upgrade dart_streams"):
        connect(keyspace)
    refused = apply_command(services, keyspace, tmp_path)
    assert isinstance(refused.exception, SchemaVersion) and "\n" not in str(refused.exception)
    assert version_in(admin, keyspace) == 9


def test_a_migration_that_is_cut_short_begins_again(keyspace, admin, monkeypatch):
    make_first(admin, keyspace.keyspace)
    monkeypatch.setattr(schema, "VERSION", 4)
    adds = "ALTER TABLE ${keyspace}.steps ADD IF NOT EXISTS note text"
    broken = "ALTER TABLE ${keyspace}.nowhere ADD IF NOT EXISTS note text"
    monkeypatch.setattr(schema, "MIGRATIONS", {1: (), 2: (adds,), 3: (broken,)})
    monkeypatch.setattr(sessions, "CONNECT_TIMEOUT_S", 60.0)
    hasty = msgspec.structs.replace(keyspace, wait_s=1.0)
    with pytest.raises(Exception, match="nowhere"):
        create_schema(hasty, migrate=True)
    assert version_in(admin, keyspace) == 3
    with pytest.raises(SchemaVersion, match=r"has version 3 .* needs 4"):
        connect(hasty)
    monkeypatch.setitem(schema.MIGRATIONS, 3, (adds.replace("steps", "trained"),))
    create_schema(keyspace, migrate=True)
    assert version_in(admin, keyspace) == 4
    assert list(admin.execute(f"SELECT note FROM {keyspace.keyspace}.steps")) == [(None,)]
    assert list(admin.execute(f"SELECT note FROM {keyspace.keyspace}.trained")) == []


def keep(keyspace: Store, seconds: float | None) -> Store:
    days = None if seconds is None else seconds / schema.DAY_S
    return msgspec.structs.replace(keyspace, retention=StoreRetention(days=days))


def test_rows_and_screenshots_expire_but_not_what_fences_trainers(keyspace):
    create_schema(keep(keyspace, 2))
    session = connect(keyspace)

    async def write() -> None:
        store = AsyncStore(session, "r", 0)
        ref = await store.put_blob(b"screen", "image/png", 1, 1)
        await store.write_step(events.observation(0, trajectory_id="t", screenshot=ref))
        await store.write_trajectory(events.trajectory("t"))

    try:
        asyncio.run(write())
        assert SyncStore(session, "r", 0).claim_epoch("tiny") == 1
        tables = ("blobs", "steps", "trajectories", "trajectories_by_task")
        wait_until(lambda: not any(list(session.execute(f"SELECT * FROM {table}")) for table in tables), "expiry")
        assert SyncStore(session, "r", 0).claim_epoch("tiny") == 2
        create_schema(keep(keyspace, None))
        assert schema.retention_s(session, keyspace.keyspace, "blobs") == 2, "another deployment leaves it"
        create_schema(keep(keyspace, 0))
        asyncio.run(write())
        assert [row[0] for row in session.execute("SELECT TTL(data) FROM blobs")] == [None]
    finally:
        session.cluster.shutdown()


async def test_a_screen_that_is_shown_again_lasts_as_a_new_one(keyspace):
    await asyncio.to_thread(create_schema, keep(keyspace, 600))
    session = await asyncio.to_thread(connect, keyspace)
    try:
        store = AsyncStore(session, "r", 1)
        ref = await store.put_blob(b"screen", "image/png", 1, 1)

        def left() -> list[int]:
            return [row[0] for row in session.execute("SELECT TTL(data) FROM blobs")]

        session.execute(session.prepare(f"{PUT_CHUNK} USING TTL 400"), (ref.sha256, 0, b"screen"))
        await store.put_blob(b"screen", "image/png", 1, 1)
        assert max(left()) <= 400, "more than half of its time is left"
        session.execute(session.prepare(f"{PUT_CHUNK} USING TTL 200"), (ref.sha256, 0, b"screen"))
        await store.put_blob(b"screen", "image/png", 1, 1)
        assert min(left()) > 400
        session.execute("TRUNCATE blobs", timeout=60)
        assert await store.put_blob(b"screen", "image/png", 1, 1) == ref
        with pytest.raises(MissingBlob):
            await AsyncStore(session, "r", 0).blob_named("0" * 64)
        assert await AsyncStore(session, "r", 0).get_blob(ref) == b"screen"
    finally:
        session.cluster.shutdown()
