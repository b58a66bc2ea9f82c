"""Kafka and Cassandra with TLS and logins, and the local JVM services."""

import ipaddress
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec
from msgspec import Meta

import topics
from dart_streams.config.section import AboveZero, Count, NonNegative, Optional, Positive, Section
from topics.topic import HOUR_MS

SERVER = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):0*[1-9][0-9]{0,4}")
"""A bootstrap server."""
HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*")
SECRET = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:.+")
"""The form of a reference to a secret; the configuration itself contains none."""


class Tls(Optional, frozen=True):
    """TLS to a service. Paths are relative to the file. Untrusted certificates and wrong host names are refused."""

    enabled: bool = False
    """Connect with TLS."""
    ca_file: str = ""
    """Trusted authorities (PEM); empty: those of the system."""
    certificate_file: str = ""
    """The client's certificate (PEM), for mutual TLS."""
    key_file: str = ""
    """The key of ``certificate_file``."""
    key_password: str = ""
    """The password of the key, as ``env:NAME`` or ``file:PATH``."""

    def __post_init__(self) -> None:
        """Refuse keys that would be ignored."""
        if not self.enabled and (self.ca_file or self.certificate_file or self.key_file):
            raise ValueError("files are given, but TLS is off: set enabled = true here")
        if bool(self.certificate_file) != bool(self.key_file) or (self.key_password and not self.key_file):
            raise ValueError("certificate_file and key_file go together, and key_password with them")
        refuse_literal(self.key_password, "key_password")


class Login(Optional, frozen=True):
    """The account at a service; empty: none."""

    user: str = ""
    """The user name, or its place as ``password`` has it: then processes with one configuration have a login each."""
    password: str = ""
    """The password, as ``env:NAME`` (an environment variable) or ``file:PATH``."""

    def __post_init__(self) -> None:
        """Refuse half a login, and a password in the configuration itself."""
        if bool(self.user) != bool(self.password):
            raise ValueError("user and password go together")
        refuse_literal(self.password, "password")


class KafkaLogin(Login, frozen=True):
    """The SASL account at the broker; empty: none."""

    mechanism: Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"] = "SCRAM-SHA-512"
    """The SASL mechanism; the broker must have it enabled."""


def refuse_literal(reference: str, key: str) -> None:
    """Raise ValueError, without the text, if ``reference`` is not of the form :data:`SECRET`."""
    if reference and not SECRET.fullmatch(reference):
        what = "key" if key.endswith("_key") else "password"
        raise ValueError(
            f"{key} must say where the {what} is, not be it: env:NAME for an environment variable, or file:PATH"
        )


def refuse_clear_password(hosts: Sequence[str], tls: Tls) -> None:
    """Raise ValueError if a password would leave this machine unencrypted."""
    if not tls.enabled and not all(map(is_loopback, hosts)):
        raise ValueError("the password would travel in the clear: set tls.enabled = true")


def is_loopback(host: str) -> bool:
    """Return whether a host is localhost or a loopback address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


S = TypeVar("S", bound=Section)


def anchor_paths(section: S, folder: Path) -> S:
    """Return a table, and the tables in it, with paths relative to ``folder`` made absolute."""

    def anchor(key: str, value: Any) -> Any:
        if isinstance(value, Section):
            return anchor_paths(value, folder)
        if isinstance(value, tuple):
            return tuple(anchor(key, item) for item in value)
        if key == "recipes":
            return {name: {own: anchor(own, item) for own, item in table.items()} for name, table in value.items()}
        if not isinstance(value, str) or not value:
            return value
        if key.endswith(("_file", "_folder")):
            return str((folder / value).absolute())
        if key.endswith(("user", "password", "token", "api_key")) and value.startswith("file:"):
            return f"file:{(folder / value.removeprefix('file:')).absolute()}"
        return value

    return msgspec.structs.replace(
        section, **{key: anchor(key, value) for key, value in msgspec.structs.asdict(section).items()}
    )


def retention_refusal(name: str, hours: float) -> str:
    """Return why a topic can't have a retention, empty if it can."""
    topic = topics.BY_NAME.get(name)
    if topic is None:
        return f"no topic has this name: use one of {', '.join(topics.BY_NAME)}"
    if topic.shortest_ms is None and hours:
        return "a run goes on from its records, which are kept as long as the run"
    if topic.shortest_ms is not None and 0 < hours * HOUR_MS < topic.shortest_ms:
        return f"its records are needed for {topic.shortest_ms / HOUR_MS:g} hours at least"
    return ""


class TopicSettings(Optional, frozen=True):
    """What a deployment sets of its topics, in place of the contract's."""

    partitions: Positive | None = None
    """Partitions of ``rollout-orders``, ``observations``, ``action-requests`` and ``actions``: the most workers of a
    kind that share the work. By default 4, or the larger of ``env.workers`` and ``rollout.workers``."""
    replicas: Count = 0
    """Copies of each record, on as many brokers; all but one acknowledge it (``min.insync.replicas``). 0: both are the
    broker's defaults."""
    retention_hours: dict[str, NonNegative] = msgspec.field(default_factory=dict)
    """Retention by topic. By default, and with 0, a topic's records are kept as long as the run, until `runs rm`."""

    def __post_init__(self) -> None:
        """Refuse a retention that loses what a run needs."""
        for name, hours in self.retention_hours.items():
            if reason := retention_refusal(name, hours):
                raise ValueError(f"retention_hours.{name}: {reason}")


class Bus(Section, frozen=True):
    """Kafka."""

    servers: str = "127.0.0.1:9092"
    """Bootstrap servers, ``host:port``, separated by commas."""
    prefix: Annotated[str, Meta(max_length=200, pattern=r"^[A-Za-z0-9._-]*$")] = "dart."
    """The prefix of every topic and consumer group; ``dart-streams run`` sets it to ``dart.RUN.``."""
    wait_s: AboveZero = 30.0
    """Time that a process waits for the broker before it gives up."""
    tls: Tls = Tls()
    login: KafkaLogin = KafkaLogin()
    topics: TopicSettings = TopicSettings()

    def __post_init__(self) -> None:
        """Refuse what is no list of servers, and to send a password unencrypted; SCRAM never sends it."""
        for server in self.servers.split(","):
            if not SERVER.fullmatch(server.strip()):
                raise ValueError(f"servers has {server.strip()!r}: name HOST:PORT, without a scheme, by commas")
        if self.login.user and self.login.mechanism == "PLAIN":
            refuse_clear_password([host for host, _ in self.places], self.tls)

    @property
    def places(self) -> list[tuple[str, str]]:
        """The servers as host and port."""
        parted = (server.strip().rpartition(":") for server in self.servers.split(","))
        return [(host, port) for host, _, port in parted]

    @property
    def run(self) -> str:
        """The run's name, which rows of the shared store carry."""
        return self.prefix.strip(".")

    @property
    def of_demonstrations(self) -> "Bus":
        """The bus of demonstrations for a run's tiny policy, before the run has topics."""
        return msgspec.structs.replace(self, prefix=f"{self.prefix.rstrip('.')}-policy.")


class StoreRetention(Optional, frozen=True):
    """How long the store keeps rows and screenshots of a run."""

    days: Annotated[float, Meta(ge=0, le=7300)] | None = None
    """Days after which screenshots and rows of steps and trajectories expire, counted from their last write. 0: never.
    `store apply` and a run's start set it for all runs of the keyspace. Without it, the keyspace's stays."""


class StoreObjects(Optional, frozen=True):
    """Screenshots in an object store instead of Cassandra."""

    uri: str = ""
    """Their place, any fsspec URL such as ``s3://BUCKET/screenshots``; empty: Cassandra. Screenshots that are not there
    are read from Cassandra."""


class Store(Section, frozen=True):
    """Cassandra."""

    blob_cache_mb: ClassVar[int] = 64
    """Megabytes of screenshots that a process caches, a few hundred images."""

    hosts: tuple[str, ...] = ("127.0.0.1",)
    """Contact points."""
    port: Positive = 9042
    """The native protocol's port, of all hosts."""
    keyspace: str = "dart"
    """The keyspace, which all runs share."""
    local_dc: str = ""
    """The datacenter whose nodes this deployment asks; empty: any node. Needed where there are several."""
    replication: Count = 0
    """Copies of each row in that datacenter, on as many nodes. ``store apply`` makes the keyspace so, and each process
    refuses another. 0: as the keyspace has, and 1 for a new one."""
    wait_s: AboveZero = 30.0
    """Time that a process waits for the database before it gives up."""
    retention: StoreRetention = StoreRetention()
    tls: Tls = Tls()
    login: Login = Login()
    objects: StoreObjects = StoreObjects()

    def __post_init__(self) -> None:
        """Refuse what is no host, and to send a password unencrypted."""
        for host in self.hosts:
            if not HOST.fullmatch(host):
                raise ValueError(f"hosts has {host!r}: name a host, without a scheme; its port is the key port")
        if self.login.user:
            refuse_clear_password(self.hosts, self.tls)


class Services(Optional, frozen=True):
    """The local JVM services of ``dart-streams up``; their ports follow ``bus.servers`` and ``store.port``."""

    kafka_heap_mb: Positive = 512
    """Kafka's heap."""
    cassandra_heap_mb: Positive = 768
    """Cassandra's heap."""
    ready_s: AboveZero = 180.0
    """Time that a service may take to answer; it is short on an idle machine."""
    optimise: bool = False
    """Use the JVM's second compiler: 10 s more CPU time at a start, less for each record."""
