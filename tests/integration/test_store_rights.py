"""A Cassandra that checks permissions: each kind of process has a login of its own, and its tables alone."""

from pathlib import Path

import pytest
from cassandra import Unauthorized
from cassandra.cluster import Session

from console.launch import access_rights
from console.launch.store_rights import store_rights
from console.runs.run_folder import write_toml
from dart_streams.config import Config
from dart_streams.errors import AccessRefused, UserError
from dart_streams.store import SyncStore, connect, create_schema, schema, statements
from tests.command_line import invoke_json
from tests.integration.secured import Secured

pytestmark = pytest.mark.timeout(600)
BOUND_S = 120.0
WRITES = {
    "blobs": (statements.PUT_CHUNK, ("0" * 64, 0, b"")),
    "steps": (statements.PUT_STEP, ("run", "t", 0, "{}")),
    "trajectories": (statements.PUT_TRAJECTORY, ("run", "t", "{}")),
    "trajectories_by_task": (statements.PUT_BY_TASK, ("run", "task", 0, "t", "{}")),
    "trained": (statements.PUT_TRAINED, ("run", 1, 1, 1, [], [], {}, 0)),
    "schema_version": ("INSERT INTO schema_version (name, version) VALUES (?, ?)", ("other", 1)),
    "epochs": ("INSERT INTO epochs (run, model_id, epoch) VALUES (?, ?, ?)", ("run", "m", 1)),
}
"""A statement of each table that writes a row, and its values."""


def is_allowed(session: Session, query: str, values: tuple[object, ...] = ()) -> bool:
    """Return whether the database executes a statement for this login."""
    try:
        session.execute(session.prepare(query), values, timeout=BOUND_S)
    except Unauthorized:
        return False
    return True


@pytest.mark.parametrize("kind", access_rights.KINDS)
def test_a_login_may_use_its_tables_and_no_other(secured: Secured, kind: str):
    given = {right.table: right.permissions for right in store_rights(kind, "")}
    if not given:
        with pytest.raises(AccessRefused, match=f"'dart-{kind}' may not do that"):
            connect(secured.store_of(kind))
        return
    session = connect(secured.store_of(kind))
    try:
        for table, (write, values) in WRITES.items():
            permissions = given.get(table, given.get("*", ()))
            assert is_allowed(session, f"SELECT * FROM {table} LIMIT 1") == ("SELECT" in permissions), table
            assert is_allowed(session, write, values) == ("MODIFY" in permissions), table
        owns = "CREATE" in given.get("*", ())
        assert is_allowed(session, "CREATE TABLE IF NOT EXISTS further (a int PRIMARY KEY)") == owns
        assert is_allowed(session, "TRUNCATE trained") == ("MODIFY" in given.get("trained", given.get("*", ())))
        assert not is_allowed(session, "CREATE ROLE thief"), "no process makes logins"
    finally:
        session.cluster.shutdown()


def test_every_table_of_the_schema_is_tried():
    assert WRITES.keys() == set(filter(None, map(schema.table_of, schema.schema_statements("dart"))))


def test_the_trainer_claims_and_writes_with_its_rights(secured: Secured):
    session = connect(secured.store_of("trainer"))
    try:
        store = SyncStore(session, "claims", 1, BOUND_S)
        epoch = store.claim_epoch("m")
        row = {"version": 1, "epoch": epoch, "group_ids": [], "trajectory_ids": [], "metrics": {}, "at_ms": 0}
        assert store.write_trained_by_claim("m", epoch, 1, row)
        assert store.claim_epoch("m") == epoch + 1
        assert not store.write_trained_by_claim("m", epoch, 2, row), "the older trainer is fenced"
        ref = store.put_blob(b"scores", "application/json")
        assert store.get_blobs([ref])[ref.sha256] == b"scores"
    finally:
        session.cluster.shutdown()


def test_only_an_operator_gives_rights_and_makes_a_keyspace(secured: Secured, tmp_path: Path):
    write_toml(tmp_path / "env.toml", Config(store=secured.store_of("env")))
    with pytest.raises(UserError, match="may this one grant"):
        invoke_json("store", "roles", "--apply", "--config", tmp_path / "env.toml")
    with pytest.raises(AccessRefused, match="'dart-run' may not do that"):
        create_schema(secured.store_of("run", "another"))
