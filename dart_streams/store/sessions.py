"""Sessions with Cassandra, connected within ``store.wait_s`` once the schema is complete.

Only ``dart-streams store apply``, ``store rebuild`` and a run's start create the schema: concurrent changes make nodes
disagree. Only ``store apply`` migrates it. All sessions check its version and ``store.replication``.
"""

import asyncio
import functools
import logging
import re
import socket
import ssl
from collections import Counter
from collections.abc import Iterable
from typing import Any

from cassandra import AuthenticationFailed, ConsistencyLevel, DriverException, InvalidRequest, Unauthorized
from cassandra.cluster import (
    EXEC_PROFILE_DEFAULT,
    Cluster,
    ExecutionProfile,
    NoConnectionsAvailable,
    NoHostAvailable,
    Session,
)
from cassandra.connection import ConnectionException, DefaultEndPoint
from cassandra.policies import ConstantReconnectionPolicy, DCAwareRoundRobinPolicy, RoundRobinPolicy, TokenAwarePolicy
from cassandra.protocol import ErrorMessage
from cassandra.query import tuple_factory
from tenacity import AsyncRetrying, Retrying

from dart_streams.config import Store
from dart_streams.connection import auth
from dart_streams.connection.protocol_probes import CQL, Endpoint, tls_refusal
from dart_streams.connection.retrying import retry_arguments
from dart_streams.deadline import Deadline
from dart_streams.errors import AccessRefused, ConfigError, ServiceUnavailable, UserError
from dart_streams.store import schema
from dart_streams.store.replication import local_datacenter, new_replication, refuse_other
from dart_streams.store.schema import SchemaIncomplete

CONNECT_TIMEOUT_S = 3.0
REQUEST_TIMEOUT_S = 10.0
RECONNECT_INTERVAL_S = 1.0
RETRY_INTERVAL_S = 0.5
PROTOCOL = 4
"""Supported since Cassandra 2.2; version 5 only adds frame checksums, which cost CPU in Python."""

UNABLE = "Unable to perform authentication"
"""Error of a node that temporarily can't read its roles."""

GONE = re.compile(r"unconfigured table (\w+)|table (\w+) does not exist")
"""Cassandra's message about a missing table."""

DOWN = (NoHostAvailable, NoConnectionsAvailable, DriverException, ErrorMessage, ConnectionException, OSError)
"""Driver errors of an unavailable database."""


class TableGone(UserError):
    """A table was dropped while in use."""

    exit_code = 1


def connect(store: Store) -> Session:
    """Connect once the schema is complete, retrying for ``store.wait_s``; blocks meanwhile.

    ``session.cluster.shutdown()`` closes the session. A read-only login needs only SELECT.

    Raises :class:`ServiceUnavailable` if the database does not answer in time or lacks a table. Raises at once
    ``AccessRefused`` if it rejects the client or is not trusted, and ``ConfigError`` for an invalid keyspace name, or
    an unreadable certificate or password.
    """
    session: Session = Retrying(**connection_policy(store))(open_keyspace, store)
    return session


async def connect_async(store: Store) -> Session:
    """Do as :func:`connect` without blocking the event loop; cancellation takes a few seconds at most."""
    return await AsyncRetrying(**connection_policy(store))(asyncio.to_thread, open_keyspace, store)


def create_schema(store: Store, *, migrate: bool = False) -> None:
    """Create the missing keyspace and tables, and with ``migrate`` those of an earlier version anew.

    Raises as :func:`connect` does.
    """
    Retrying(**connection_policy(store))(open_keyspace, store, create=True, migrate=migrate).cluster.shutdown()


def check(store: Store) -> None:
    """Return once the database has accepted a session, whatever its schema; raise as :func:`connect` does."""
    Retrying(**connection_policy(store))(open_session, store).cluster.shutdown()


def connection_policy(store: Store) -> dict[str, Any]:
    """Return the retry policy of connections."""
    at, wait_s = place_of(store), store.wait_s
    return retry_arguments(
        Deadline(wait_s),
        min(1.0, wait_s / 10),
        f"database at {at}",
        # concurrent schema changes also make invalid requests
        retryable=lambda error: isinstance(error, (*DOWN, SchemaIncomplete)),
        unavailable=lambda error: ServiceUnavailable(
            f"{error} after {wait_s:g} s: run `dart-streams store apply`"
            if isinstance(error, SchemaIncomplete)
            else f"no Cassandra at {at} after {wait_s:g} s ({shorten_error(error)}): "
            "start one with `dart-streams up`, or set store.hosts and store.port"
        ),
    )


def request_policy(wait_s: float) -> dict[str, Any]:
    """Return the retry policy of requests."""
    return retry_arguments(
        Deadline(wait_s),
        min(RETRY_INTERVAL_S, wait_s / 10),
        "database",
        is_down,
        unavailable=lambda error: ServiceUnavailable(
            f"Cassandra did not answer for {wait_s:g} s ({shorten_error(error)}): see `dart-streams doctor`"
        ),
    )


def is_down(error: BaseException) -> bool:
    """Return whether an error means an unavailable database, not an invalid request."""
    return isinstance(error, DOWN) and not isinstance(error, InvalidRequest)


def gone_error(error: BaseException, run: str) -> TableGone | None:
    """Return the error for a dropped table; None if ``error`` is of another kind."""
    match = GONE.search(str(error)) if isinstance(error, InvalidRequest) else None
    if match is None:
        return None
    return TableGone(
        f"table {match[1] or match[2]} is gone from the store: it was dropped, with its rows. "
        f"`dart-streams store rebuild --run {run}` creates it again and brings them back"
    )


def open_keyspace(store: Store, *, create: bool = False, migrate: bool = False) -> Session:
    """Connect once; create the schema (``create``), bring it to this version (``migrate``), or require both.

    Raises one of :data:`DOWN` or :class:`SchemaIncomplete`, or for good :class:`~schema.SchemaVersion`, and leaves
    nothing open.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,47}", store.keyspace):
        raise ConfigError(
            f"store.keyspace {store.keyspace!r}: use lower-case letters, digits and _, a letter first, 48 at most"
        )
    session = open_session(store)
    try:
        nodes = count_nodes(session.cluster)
        if create:
            schema.apply(session, store, functools.partial(new_replication, store, nodes), migrate=migrate)
        else:
            schema.require(session, store.keyspace)
        if (keyspace := session.cluster.metadata.keyspaces.get(store.keyspace)) is None:
            raise SchemaIncomplete(f"keyspace {store.keyspace} was made a moment ago, and is not yet known here")
        refuse_other(store, nodes, keyspace.replication_strategy)
        session.set_keyspace(store.keyspace)
    except BaseException as error:
        session.cluster.shutdown()
        if not isinstance(error, Unauthorized):
            raise
        raise AccessRefused(
            f"{store.login.user!r} may not do that in Cassandra ({shorten_error(error)}): have its operator make "
            f"keyspace {store.keyspace} and grant ALL on it, or grant CREATE on all keyspaces"
        ) from None
    return session


def grant_rights(session: Session, statements: Iterable[str]) -> None:
    """Execute GRANT statements; raise :class:`UserError` if the database refuses one, or checks no permissions."""
    for statement in statements:
        try:
            session.execute(statement)
        except (InvalidRequest, Unauthorized) as error:
            raise UserError(
                f"{statement}: {shorten_error(error)}. Has Cassandra the CassandraAuthorizer, does the login exist "
                "(CREATE ROLE), and may this one grant?"
            ) from None


def open_session(store: Store) -> Session:
    """Connect once; raise one of :data:`DOWN`, or for good :class:`AccessRefused`, with nothing left open."""
    logging.getLogger("cassandra").setLevel(logging.CRITICAL)  # its failures are raised as well
    settings = auth.cassandra_arguments(store)
    cluster = Cluster(
        # As endpoints, names are resolved for each connection (a restarted container may have moved), and they are
        # what a certificate is checked against.
        contact_points=[DefaultEndPoint(host, store.port) for host in store.hosts],
        port=store.port,
        protocol_version=PROTOCOL,
        compression=False,
        connect_timeout=CONNECT_TIMEOUT_S,
        control_connection_timeout=CONNECT_TIMEOUT_S,
        # Without it each answer waits 40 ms for a delayed acknowledgement as soon as several requests are in flight.
        sockopts=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
        # The default backs off to ten minutes, so a database that is back would long count as down.
        reconnection_policy=ConstantReconnectionPolicy(RECONNECT_INTERVAL_S, max_attempts=None),
        execution_profiles={
            EXEC_PROFILE_DEFAULT: ExecutionProfile(
                load_balancing_policy=TokenAwarePolicy(
                    DCAwareRoundRobinPolicy(store.local_dc) if store.local_dc else RoundRobinPolicy()
                ),
                consistency_level=ConsistencyLevel.LOCAL_QUORUM,
                serial_consistency_level=ConsistencyLevel.LOCAL_SERIAL,
                request_timeout=REQUEST_TIMEOUT_S,
                row_factory=tuple_factory,
            )
        },
        **settings,
    )
    try:
        return cluster.connect()
    except BaseException as error:
        nodes = count_nodes(cluster)
        cluster.shutdown()
        if store.local_dc and nodes:
            local_datacenter(store, nodes)
        context = settings.get("ssl_context")
        if isinstance(error, NoHostAvailable) and (refused := find_refusal(store, error, context)) is not None:
            raise refused from None
        raise


def count_nodes(cluster: Cluster) -> Counter[str]:
    """Return the number of known nodes of each datacenter."""
    return Counter(host.datacenter for host in cluster.metadata.all_hosts() if host.datacenter)


def find_refusal(store: Store, error: NoHostAvailable, context: ssl.SSLContext | None) -> AccessRefused | None:
    """Return the error of a database that rejects this client; None if a later try may succeed."""
    if any(isinstance(cause, AuthenticationFailed) and UNABLE not in str(cause) for cause in error.errors.values()):
        place, login = f"Cassandra at {place_of(store)}", store.login
        if not login.user:
            return AccessRefused(f"{place} requires a login: set store.login.user and store.login.password")
        return AccessRefused(
            f"{place} refuses the login of {login.user!r}: correct it, or the password in {login.password}, "
            "or have that role made"
        )
    shows_certificate = bool(store.tls.certificate_file)
    endpoints = (Endpoint("Cassandra", "store", host, store.port, CQL) for host in store.hosts)
    refusals = (tls_refusal(endpoint, context, shows_certificate) for endpoint in endpoints)
    return next((refused for refused in refusals if refused is not None), None)


def place_of(store: Store) -> str:
    """Return the database's location for error texts."""
    return f"{', '.join(store.hosts)} port {store.port}"


def shorten_error(error: BaseException) -> str:
    """Return a driver error in one short line."""
    if isinstance(error, NoHostAvailable) and error.errors:
        error = next(iter(error.errors.values()))
    return (str(error).splitlines() or [type(error).__name__])[0][:200] or type(error).__name__
