"""A Cassandra that checks permissions: each kind of process has a login of its own, and its tables alone."""

import asyncio
import io
import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from cassandra import Unauthorized
from cassandra.cluster import Session
from rich.console import Console

from benchmarks.private_services import HOMES, READY_TIMEOUT_S, private_folder
from dart_streams.config import Config, Login, Store
from dart_streams.console.launch import access_rights
from dart_streams.console.launch.services import local
from dart_streams.console.launch.services.daemon import Home, free_port
from dart_streams.console.launch.services.lock import ignore_message
from dart_streams.console.launch.store_rights import store_rights
from dart_streams.console.launch.supervisor import ProcessSpec
from dart_streams.console.runs import run_folder as folder
from dart_streams.console.runs.run_folder import write_toml
from dart_streams.errors import AccessRefused, UserError
from dart_streams.java import SHARED_JARS
from dart_streams.store import SyncStore, connect, create_schema, schema, statements
from tests.command_line import invoke, invoke_json
from tests.integration.secured import Certificates, SecuredCassandra
from tests.integration.test_circle import HERE, circle_config, session_of

pytestmark = pytest.mark.timeout(600)
OPERATOR = "operator"
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
PROCESSES = ("env", "rollout", "recorder", "trainer")
"""Workers of the circle that open a session."""


class Checked(NamedTuple):
    """The database, and the folder of the logins' passwords."""

    database: SecuredCassandra
    secrets: Path

    def store(self, kind: str, keyspace: str = "dart") -> Store:
        """Return how a kind of process reaches the database."""
        name = kind if kind == OPERATOR else f"dart-{kind}"
        login = Login(user=name, password=f"file:{self.secrets / kind}")
        tls = msgspec.structs.replace(
            Store().tls, enabled=True, ca_file=str(self.database.certificates.certificate("ca"))
        )
        return Store(
            hosts=("localhost",), port=self.database.port, keyspace=keyspace, tls=tls, login=login, wait_s=BOUND_S
        )


@pytest.fixture(scope="module")
def checked() -> Iterator[Checked]:
    with private_folder(HOMES, "-checked") as state:
        database = SecuredCassandra(free_port(), Certificates(state / "secrets"))
        home = Home(state / "services" / database.name)
        local.bring_up(database, home, READY_TIMEOUT_S, ignore_message, SHARED_JARS)
        made = Checked(database, state)
        for kind in (OPERATOR, *access_rights.KINDS):
            password = secrets.token_hex(12)
            (state / kind).write_text(password)
            grants = ("ALL PERMISSIONS ON ALL KEYSPACES", "AUTHORIZE ON ALL KEYSPACES") if kind == OPERATOR else ()
            database.add_user(kind if kind == OPERATOR else f'"dart-{kind}"', password, grants)
        create_schema(made.store(OPERATOR))
        write_toml(state / "operator.toml", Config(store=made.store(OPERATOR)))
        done = invoke("store", "roles", "--apply", "--config", state / "operator.toml")
        assert done.exit_code == 0, (done.output, done.exception)
        yield made


def is_allowed(session: Session, query: str, values: tuple[object, ...] = ()) -> bool:
    """Return whether the database executes a statement for this login."""
    try:
        session.execute(session.prepare(query), values)
    except Unauthorized:
        return False
    return True


@pytest.mark.parametrize("kind", access_rights.KINDS)
def test_a_login_may_use_its_tables_and_no_other(checked: Checked, kind: str):
    given = {right.table: right.permissions for right in store_rights(kind, "")}
    if not given:
        with pytest.raises(AccessRefused, match=f"'dart-{kind}' may not do that"):
            connect(checked.store(kind))
        return
    session = connect(checked.store(kind))
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


def test_the_trainer_claims_and_writes_with_its_rights(checked: Checked):
    session = connect(checked.store("trainer"))
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


def test_only_an_operator_gives_rights_and_makes_a_keyspace(checked: Checked, tmp_path: Path):
    write_toml(tmp_path / "env.toml", Config(store=checked.store("env")))
    with pytest.raises(UserError, match="may this one grant"):
        invoke_json("store", "roles", "--apply", "--config", tmp_path / "env.toml")
    with pytest.raises(AccessRefused, match="'dart-run' may not do that"):
        create_schema(checked.store("run", "another"))


def test_a_circle_turns_with_a_login_for_each_process(services, checked: Checked, tmp_path: Path):
    base = circle_config(services, tmp_path, episodes=0, train_steps=3)
    config = msgspec.structs.replace(base, store=checked.store("run"))
    made = folder.create(config, HERE / "circle-tasks.toml", folder.new_id(), resume=False)
    shown = io.StringIO()
    session = session_of(made, Console(file=shown, width=160))
    own = {
        kind: tuple(with_login(spec, kind, made, checked) for spec in getattr(session.processes, kind))
        for kind in PROCESSES
    }
    session.processes = msgspec.structs.replace(session.processes, **own)
    asyncio.run(session.run())
    report = json.loads((made.path / "report.json").read_text())
    assert (report["outcome"], report["lost"]) == ("complete", 0), shown.getvalue()
    assert report["train_steps"] >= 3
    logs = "".join(log.read_text() for log in made.path.glob("logs/*.log"))
    assert "nauthorized" not in logs
    assert "may not do that" not in logs
    rows = invoke_json("store", "diff", "--run", made.id, "--state", config.run.state_dir)
    assert all(row["equal"] for row in rows)


def with_login(spec: ProcessSpec, kind: str, made: folder.RunFolder, checked: Checked) -> ProcessSpec:
    """Return a process with the login of its kind, by a configuration beside the run's."""
    config, file = made.config(), made.path / f"config-{kind}.toml"
    tasks = msgspec.structs.replace(config.tasks, file="tasks.toml")
    write_toml(file, msgspec.structs.replace(config, store=checked.store(kind), tasks=tasks))
    command = tuple(str(file) if word == str(made.config_file) else word for word in spec.command)
    assert command != spec.command
    return msgspec.structs.replace(spec, command=command)
