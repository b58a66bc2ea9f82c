"""Rights of each kind of process in a Cassandra that checks them: the tables that it reads and writes. Pure.

A kind has a login of its own, as at the broker. Environment workers show web pages, so theirs opens the least.
"""

from collections.abc import Iterator
from typing import Literal

import msgspec

from console.launch.access_rights import KINDS, PEOPLE
from dart_streams.errors import UserError
from dart_streams.store.schema import VERSIONS

Permission = Literal["SELECT", "MODIFY", "CREATE", "ALTER", "DROP"]
READ: tuple[Permission, ...] = ("SELECT",)
WRITE: tuple[Permission, ...] = ("MODIFY",)
BOTH: tuple[Permission, ...] = ("SELECT", "MODIFY")
OWNER: tuple[Permission, ...] = ("CREATE", "ALTER", "DROP", "SELECT", "MODIFY")
EVERY_TABLE = "*"
TABLES: dict[str, dict[str, tuple[Permission, ...]]] = {
    "env": {VERSIONS: READ, "blobs": BOTH, "steps": READ},  # steps of a recorded trajectory guide an episode
    "rollout": {VERSIONS: READ, "blobs": READ},
    "recorder": {VERSIONS: READ, "steps": BOTH, "trajectories": WRITE, "trajectories_by_task": WRITE},
    "trainer": {VERSIONS: READ, "blobs": BOTH, "steps": READ, "trained": BOTH, "epochs": BOTH},  # a claim reads
    "tracker": {VERSIONS: READ, "blobs": READ, "steps": READ},
    "ui": {EVERY_TABLE: READ},
    **{kind: {EVERY_TABLE: READ} for kind in PEOPLE},
    "run": {EVERY_TABLE: OWNER},
}
"""Permissions by table; each session reads the schema's version. A kind that is not listed opens no session."""


class StoreRight(msgspec.Struct, frozen=True, kw_only=True):
    """Permissions of a login on a table, or on the whole keyspace if ``table`` is ``*``."""

    login: str
    table: str
    permissions: tuple[Permission, ...]

    def statements(self, keyspace: str) -> Iterator[str]:
        """Yield the statements that give this right."""
        place = f"KEYSPACE {keyspace}" if self.table == EVERY_TABLE else f"TABLE {keyspace}.{self.table}"
        quoted = self.login.replace('"', '""')
        for permission in self.permissions:
            yield f'GRANT {permission} ON {place} TO "{quoted}"'


def store_rights(kind: str, login: str) -> list[StoreRight]:
    """Return the rights of a kind of process for a login; raise :class:`UserError` for an unknown kind."""
    if kind not in KINDS:
        raise UserError(f"no kind of process {kind!r}: use one of {', '.join(KINDS)}")
    return [
        StoreRight(login=login, table=table, permissions=permissions)
        for table, permissions in TABLES.get(kind, {}).items()
    ]
