"""Rows of the store that only tests read."""

import msgspec

from dart_streams.store import AsyncStore
from topics.trajectories import Trajectory


def trajectories_in(store: AsyncStore, table: str, key: str, value: str) -> list[Trajectory]:
    """Return the trajectories of a table whose ``key`` has this value, in the order of the table."""
    query = f"SELECT trajectory FROM {table} WHERE run = %s AND {key} = %s"
    return [msgspec.json.decode(row[0], type=Trajectory) for row in store.session.execute(query, (store.run, value))]
