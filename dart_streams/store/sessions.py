"""A session with the database: connected within a deadline, with the schema applied."""

import asyncio
import logging
import re
import socket
import ssl
import string
import time
from collections.abc import Callable
from importlib import resources

import structlog
from cassandra import AuthenticationFailed, ConsistencyLevel, DriverException, Unauthorized
from cassandra.cluster import (
    EXEC_PROFILE_DEFAULT,
    Cluster,
    ExecutionProfile,
    NoConnectionsAvailable,
    NoHostAvailable,
    Session,
)
from cassandra.connection import ConnectionException, DefaultEndPoint
from cassandra.policies import ConstantReconnectionPolicy, RoundRobinPolicy, TokenAwarePolicy
from cassandra.protocol import ErrorMessage
from cassandra.query import tuple_factory

from dart_streams.config import Store
from dart_streams.connection import auth as access
from dart_streams.connection.connection_errors import Endpoint, look
from dart_streams.connection.protocol_probes import greet_cql
from dart_streams.errors import AccessRefused, ConfigError, ServiceUnavailable

CONNECT_TIMEOUT_S = 3.0
REQUEST_TIMEOUT_S = 10.0
RECONNECT_S = 1.0
PROTOCOL = 4
"""Understood by every Cassandra since 2.2; version 5 only adds frame checksums, which cost Python CPU."""

REPLICATION = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
"""Used where the keyspace does not exist yet; a cluster's operator creates it beforehand with another."""

UNABLE = "Unable to perform authentication"
"""What a node says that can't read its users at the moment."""

DOWN = (NoHostAvailable, NoConnectionsAvailable, DriverException, ErrorMessage, ConnectionException, OSError)
"""What the driver raises while a database is not there."""


def connect(store: Store) -> Session:
    """Connect and apply the schema, trying again until ``store.wait_s`` is over; it blocks meanwhile.

    ``session.cluster.shutdown()`` closes it.

    Raises
    ------
    ServiceUnavailable
        If the database did not answer, or did not accept the schema, in time.
    AccessRefused
        If it answers, and refuses this side or is not to be trusted; at once.
    ConfigError
        If the keyspace's name is none, or a certificate or the password can't be had.
    """
    return patiently(store, attempt)


def check(store: Store) -> None:
    """Return when the database has let this side in; raise as :func:`connect` does. Its tables are left alone."""
    patiently(store, enter).cluster.shutdown()


def patiently(store: Store, once: Callable[[Store], Session]) -> Session:
    """Return the session that ``once`` opens, trying again for as long as :class:`Patience` lasts."""
    patience = Patience(store)
    while True:
        try:
            return once(store)
        except DOWN as error:
            time.sleep(patience.pause_s(error))


async def connect_async(store: Store) -> Session:
    """Do the same as :func:`connect` without blocking the event loop; cancelling it takes a few seconds at most."""
    patience = Patience(store)
    while True:
        try:
            return await asyncio.to_thread(attempt, store)
        except DOWN as error:
            await asyncio.sleep(patience.pause_s(error))


class Patience:
    """How long it is still worth to try: says once that it waits, and gives up after ``store.wait_s``."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.place = place_of(store)
        self.deadline = time.monotonic() + store.wait_s
        self.told = False

    def pause_s(self, error: BaseException) -> float:
        """Return how long to pause after a failed try; raise :class:`ServiceUnavailable` when time is over."""
        wait_s = self.store.wait_s
        if time.monotonic() >= self.deadline:
            raise ServiceUnavailable(
                f"no Cassandra at {self.place} after {wait_s:g} s ({reason(error)}): "
                "start one with `dart-streams up`, or set store.hosts and store.port"
            ) from None
        if not self.told:
            structlog.get_logger().info(
                "waiting for the database", at=self.place, until_s=wait_s, because=reason(error)
            )
            self.told = True
        return min(1.0, wait_s / 10)


def attempt(store: Store) -> Session:
    """Connect once and apply the schema; raise one of :data:`DOWN` with nothing left open if that fails."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,47}", store.keyspace):
        raise ConfigError(
            f"store.keyspace {store.keyspace!r}: use lower-case letters, digits and _, a letter first, 48 at most"
        )
    session = enter(store)
    try:
        apply_schema(session, store.keyspace)
        session.set_keyspace(store.keyspace)
    except Unauthorized as error:
        session.cluster.shutdown()
        raise not_granted(store, error) from None
    except BaseException:
        session.cluster.shutdown()
        raise
    return session


def enter(store: Store) -> Session:
    """Connect once; raise one of :data:`DOWN`, or, for good, :class:`AccessRefused`, with nothing left open."""
    logging.getLogger("cassandra").setLevel(logging.CRITICAL)  # its failures reach us as exceptions, without tracebacks
    settings = access.cassandra(store)
    cluster = Cluster(
        # As end points, their names are looked up for each connection: a container that comes back may have moved.
        # A certificate is held against them too.
        contact_points=[DefaultEndPoint(host, store.port) for host in store.hosts],
        port=store.port,
        protocol_version=PROTOCOL,
        compression=False,
        connect_timeout=CONNECT_TIMEOUT_S,
        # Without it each answer waits 40 ms for a delayed acknowledgement as soon as several requests are in flight.
        sockopts=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
        # The default backs off to ten minutes: a database that is back would long be taken for dead.
        reconnection_policy=ConstantReconnectionPolicy(RECONNECT_S, max_attempts=None),
        execution_profiles={EXEC_PROFILE_DEFAULT: profile()},
        **settings,
    )
    try:
        return cluster.connect()
    except NoHostAvailable as error:
        cluster.shutdown()
        if (refused := refusal(store, error, settings.get("ssl_context"))) is not None:
            raise refused from None
        raise
    except BaseException:
        cluster.shutdown()
        raise


def profile() -> ExecutionProfile:
    """Return how requests are sent."""
    return ExecutionProfile(
        load_balancing_policy=TokenAwarePolicy(RoundRobinPolicy()),
        consistency_level=ConsistencyLevel.LOCAL_QUORUM,
        serial_consistency_level=ConsistencyLevel.SERIAL,
        request_timeout=REQUEST_TIMEOUT_S,
        row_factory=tuple_factory,
    )


def refusal(store: Store, error: NoHostAvailable, context: ssl.SSLContext | None) -> AccessRefused | None:
    """Return why the database does not let this side in; None if it may do so later."""
    for cause in error.errors.values():
        if isinstance(cause, AuthenticationFailed) and UNABLE not in str(cause):
            return AccessRefused(login_refused(store))
    shows_certificate = bool(store.tls.certificate_file)
    doors = (Endpoint("Cassandra", "store", host, store.port, greet_cql) for host in store.hosts)
    found = (look(door, context, shows_certificate=shows_certificate) for door in doors)
    return next((refused for refused in found if refused is not None), None)


def login_refused(store: Store) -> str:
    """Return what a refused login means and what to do."""
    place = f"Cassandra at {place_of(store)}"
    if not store.login.user:
        return f"{place} wants a login: set store.login.user and store.login.password"
    return (
        f"{place} refuses the login of {store.login.user!r}: correct it, or the password in {store.login.password}, "
        "or have that role made"
    )


def not_granted(store: Store, error: Unauthorized) -> AccessRefused:
    """Return the error that the login may not make the schema."""
    return AccessRefused(
        f"{store.login.user!r} may not do that in Cassandra ({reason(error)}): have its operator make keyspace "
        f"{store.keyspace} and grant ALL on it, or grant CREATE on all keyspaces"
    )


def place_of(store: Store) -> str:
    """Return where the database is, as error texts name it."""
    return f"{', '.join(store.hosts)} port {store.port}"


def apply_schema(session: Session, keyspace: str) -> None:
    """Create what is missing. A complete schema costs no round trip."""
    statements = schema(keyspace)
    existing = session.cluster.metadata.keyspaces.get(keyspace)
    if existing is not None and all(table in existing.tables for table in map(table_of, statements) if table):
        return
    for statement in statements:
        session.execute(statement, timeout=30.0)


def schema(keyspace: str) -> list[str]:
    """Return the statements of schema.cql, the keyspace's first."""
    text = resources.files("dart_streams.store").joinpath("schema.cql").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("--")]
    filled = string.Template("\n".join(lines)).substitute(keyspace=keyspace, replication=REPLICATION)
    return [statement.strip() for statement in filled.split(";") if statement.strip()]


def table_of(statement: str) -> str:
    """Return the name of the table that a statement creates; empty if it creates none."""
    found = re.match(r"CREATE TABLE IF NOT EXISTS \w+\.(\w+)", statement)
    return found[1] if found else ""


def reason(error: BaseException) -> str:
    """Return an error of the driver in one short line."""
    if isinstance(error, NoHostAvailable) and error.errors:
        error = next(iter(error.errors.values()))
    return (str(error).splitlines() or [type(error).__name__])[0][:200] or type(error).__name__
