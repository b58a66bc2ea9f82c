"""Cassandra: steps, trajectories and screenshots as a projection of the topics.

Asynchronous processes use :class:`AsyncStore`, synchronous ones :class:`SyncStore`. No decision is made here.
"""

from dart_streams.store.asynchronous import AsyncStore, open_store
from dart_streams.store.blobs import MissingBlob
from dart_streams.store.sessions import connect, connect_async, create_schema
from dart_streams.store.synchronous import SyncStore, sync_store
