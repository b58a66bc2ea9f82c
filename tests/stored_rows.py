"""Rows of the store that only tests read, and the connection of those that need no schema."""

import msgspec
from cassandra.cluster import Cluster

from dart_streams.config import Store
from dart_streams.store import AsyncStore
from topics.trajectories import Trajectory


def cluster_of(store: Store) -> Cluster:
    """Return the database of a store, whose first answers may come late; the driver gives them 2 and 5 s."""
    return Cluster(list(store.hosts), port=store.port, connect_timeout=60, control_connection_timeout=60)


def trajectories_in(store: AsyncStore, table: str, key: str, value: str) -> list[Trajectory]:
    """Return the trajectories of a table whose ``key`` has this value, in the order of the table."""
    query = f"SELECT trajectory FROM {table} WHERE run = %s AND {key} = %s"
    return [msgspec.json.decode(row[0], type=Trajectory) for row in store.session.execute(query, (store.run, value))]
