"""Kafka, Cassandra, and the local JVM services that stand in for both."""

from typing import ClassVar

from dart_streams.config.secrets import KafkaLogin, Login, Tls, refuse_clear_password
from dart_streams.config.section import AboveZero, Optional, Positive, Section


class Bus(Section, frozen=True):
    """Kafka."""

    servers: str = "127.0.0.1:9092"
    """Bootstrap servers, ``host:port``, separated by commas."""
    prefix: str = "dart."
    """The prefix of every topic and consumer group; ``dart-streams run`` sets it to ``dart.RUN.``."""
    wait_s: AboveZero = 30.0
    """How long a process waits for the broker before it gives up."""
    tls: Tls = Tls()
    login: KafkaLogin = KafkaLogin()

    def __post_init__(self) -> None:
        """Refuse to send a password unencrypted; SCRAM never sends it."""
        if self.login.user and self.login.mechanism == "PLAIN":
            refuse_clear_password([host for host, _ in self.places], self.tls)

    @property
    def places(self) -> list[tuple[str, str]]:
        """The servers as host and port."""
        parted = (server.strip().rpartition(":") for server in self.servers.split(","))
        return [(host, port) for host, _, port in parted]

    @property
    def run(self) -> str:
        """The run that this prefix names; rows of the shared store carry it."""
        return self.prefix.strip(".")


class Store(Section, frozen=True):
    """Cassandra."""

    blob_cache_mb: ClassVar[int] = 64
    """Megabytes of screenshots that a process caches: a few hundred, more than one episode shows."""

    hosts: tuple[str, ...] = ("127.0.0.1",)
    """Contact points."""
    port: Positive = 9042
    """The native protocol's port, of all hosts."""
    keyspace: str = "dart"
    """The keyspace; runs share it, their rows carry the run."""
    wait_s: AboveZero = 30.0
    """How long a process waits for the database before it gives up."""
    tls: Tls = Tls()
    login: Login = Login()

    def __post_init__(self) -> None:
        """Refuse to send a password unencrypted."""
        if self.login.user:
            refuse_clear_password(self.hosts, self.tls)


class Services(Optional, frozen=True):
    """The local JVM services of ``dart-streams up``; their ports follow ``bus.servers`` and ``store.port``."""

    kafka_heap_mb: Positive = 512
    """Kafka's heap."""
    cassandra_heap_mb: Positive = 768
    """Cassandra's heap."""
    ready_s: AboveZero = 60.0
    """How long a service may take to answer."""
    optimise: bool = False
    """Use the JVM's second compiler: ten seconds of CPU more a start, less a record at hundreds of steps a second."""
