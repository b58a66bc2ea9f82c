"""Statements of the rights of each kind of process in Cassandra."""

import pytest

from console.launch.access_rights import KINDS
from console.launch.store_rights import TABLES, store_rights
from dart_streams.errors import UserError
from dart_streams.store import schema
from tests.command_line import invoke, invoke_json


def statements_of(kind: str) -> list[str]:
    return [text for right in store_rights(kind, f"dart-{kind}") for text in right.statements("mine")]


def test_rights_are_statements_on_the_keyspace_and_its_tables():
    assert statements_of("rollout") == [
        'GRANT SELECT ON TABLE mine.schema_version TO "dart-rollout"',
        'GRANT SELECT ON TABLE mine.blobs TO "dart-rollout"',
    ]
    assert statements_of("ui") == ['GRANT SELECT ON KEYSPACE mine TO "dart-ui"']
    assert statements_of("curator") == []
    [right] = store_rights("ui", 'a"b')
    assert list(right.statements("mine")) == ['GRANT SELECT ON KEYSPACE mine TO "a""b"'], "a quote ends no name"


def test_rights_name_what_exists_and_pages_write_nothing_that_is_read():
    tables = set(filter(None, map(schema.table_of, schema.schema_statements("mine"))))
    assert TABLES.keys() <= set(KINDS)
    assert {table for of_kind in TABLES.values() for table in of_kind} <= tables | {"*"}
    written = {right.table for right in store_rights("env", "") if "MODIFY" in right.permissions}
    assert written == {"blobs"}


def test_the_command_shows_rights_and_statements():
    rows = invoke_json("store", "roles", "env", "--user", "team-{kind}")
    assert {row["login"] for row in rows} == {"team-env"}
    text = invoke("store", "roles", "--cql").stdout
    assert text.splitlines()[0] == 'GRANT SELECT ON TABLE dart.schema_version TO "dart-env";'
    with pytest.raises(UserError, match="no kind of process 'nobody'"):
        invoke_json("store", "roles", "nobody")
