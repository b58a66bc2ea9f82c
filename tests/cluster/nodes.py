"""Three brokers and three database nodes as processes of this machine, on loopback addresses 127.0.0.1 to 127.0.0.3.

Every node may be killed and started again alone. They are those of ``dart-streams up``, with what makes them a cluster.
"""

import contextlib
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
from cassandra import ConsistencyLevel, DriverException
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
from cassandra.policies import WhiteListRoundRobinPolicy
from kafka.errors import KafkaError

from benchmarks.private_services import private_folder
from console.launch.services import local
from console.launch.services.daemon import Home, free_port
from console.launch.services.jvm import Cassandra, Kafka, Service, format_storage
from console.launch.services.lock import ignore_message
from dart_streams.bus import admin
from dart_streams.config import Bus, Config, Run, Services, Store
from dart_streams.config.connections import TopicSettings
from dart_streams.errors import ServiceUnavailable
from dart_streams.java import SHARED_JARS
from tests.waiting import wait_until

COPIES = 3
HOSTS = tuple(f"127.0.0.{number}" for number in range(1, COPIES + 1))
DATACENTER = "datacenter1"
"""The one that Cassandra's ``SimpleSnitch`` names."""
READY_S = 300.0
IN_SYNC_S = 240.0
CLUSTER_ID = "Y2x1c3Rlci1jbHVzdGVyMQ"
SMALL = Services(kafka_heap_mb=256, cassandra_heap_mb=512, ready_s=READY_S)
TOKENS = [number * 2**64 // COPIES - 2**63 for number in range(COPIES)]
REPLICATED = {"offsets.topic": "", "transaction.state.log": ".min.isr", "share.coordinator.state.topic": ".min.isr"}


class Broker(Kafka):
    """One of three nodes that are broker and controller."""

    def __init__(self, number: int, port: int, controller_ports: list[int]) -> None:
        super().__init__(Bus(servers=f"{HOSTS[number]}:{port}"), SMALL)
        self.number = number
        self.controller_ports = controller_ports

    def prepare(self, home: Home, java: Path, jars: Path) -> list[str]:
        """Do as the single broker does; the log folder is formatted here, since all nodes share the cluster's id."""
        marker = home.data / "meta.properties"
        if is_new := not marker.exists():
            home.data.mkdir(parents=True)
            marker.touch()
        command = super().prepare(home, java, jars)
        settings = home.folder / "server.properties"
        settings.write_text(settings.read_text() + self.properties())  # The last word on a property counts.
        if is_new:
            shutil.rmtree(home.data)
            format_storage(home, command[: command.index("-cp") + 2], f"--cluster-id={CLUSTER_ID}")
        return command

    def properties(self) -> str:
        """Return what makes the broker one of a cluster."""
        voters = enumerate(zip(HOSTS, self.controller_ports, strict=True), start=1)
        controller = f"CONTROLLER://{self.host}:{self.controller_ports[self.number]}"
        replicated = "\n".join(f"{name}.replication.factor={COPIES}" for name in REPLICATED)
        return f"""
node.id={self.number + 1}
controller.quorum.voters={",".join(f"{node}@{host}:{port}" for node, (host, port) in voters)}
listeners=PLAINTEXT://{self.host}:{self.port},{controller}
default.replication.factor={COPIES}
min.insync.replicas={COPIES - 1}
transaction.state.log.min.isr={COPIES - 1}
share.coordinator.state.topic.min.isr={COPIES - 1}
{replicated}
"""


class DatabaseNode(Cassandra):
    """One of three nodes, each with a third of the ring."""

    def __init__(self, number: int, port: int, storage_port: int) -> None:
        super().__init__(Store(hosts=(HOSTS[number],), port=port), SMALL)
        self.number = number
        self.storage_port = storage_port

    def prepare(self, home: Home, java: Path, jars: Path) -> list[str]:
        """Do as the single node does, and join the ring."""
        command = super().prepare(home, java, jars)
        settings = home.folder / "cassandra.yaml"
        text = settings.read_text()
        for pattern, value in (
            (r"listen_address: .*", f"listen_address: {self.host}"),
            (r"storage_port: .*", f"storage_port: {self.storage_port}"),
            (r'- seeds: ".*"', f'- seeds: "{",".join(f"{host}:{self.storage_port}" for host in HOSTS)}"'),
            (r"hinted_handoff_enabled: false", "hinted_handoff_enabled: true"),
        ):
            text, changed = re.subn(pattern, value, text)
            assert changed == 1, pattern
        settings.write_text(f"{text}\nauto_bootstrap: false\ninitial_token: '{TOKENS[self.number]}'\n")
        return command


class Nodes:
    """The running nodes; made by :func:`nodes`. A node is named ``kafka-1`` or ``cassandra-1``."""

    def __init__(self, folders: list[Path]) -> None:
        port, storage_port, cql_port = free_port(), free_port(), free_port()
        controllers = [free_port() for _ in HOSTS]
        self.services: dict[str, tuple[Service, Home]] = {}
        for number, folder in enumerate(folders):
            broker, database = Broker(number, port, controllers), DatabaseNode(number, cql_port, storage_port)
            for service in (broker, database):
                self.services[f"{service.name}-{number + 1}"] = service, Home(folder / "services" / service.name)
        self.running = Config(
            bus=Bus(servers=",".join(f"{host}:{port}" for host in HOSTS), topics=TopicSettings(replicas=COPIES)),
            store=Store(hosts=HOSTS, port=cql_port, replication=COPIES, local_dc=DATACENTER),
            run=Run(state_dir=str(folders[0])),
        )
        self.keyspace = "cluster"

    def up(self, *names: str) -> None:
        """Start these nodes, by default all of them."""
        with ThreadPoolExecutor(COPIES) as pool:
            list(pool.map(self._up, names or self.services))

    def _up(self, name: str) -> None:
        service, home = self.services[name]
        local.bring_up(service, home, READY_S, ignore_message, SHARED_JARS)

    def kill(self, name: str) -> None:
        """Kill a node with SIGKILL."""
        found = self.services[name][1].find()
        assert found is not None, f"{name} does not run"
        found[0].kill()
        psutil.wait_procs([found[0]], timeout=READY_S)

    def await_in_sync(self, prefix: str, keyspace: str) -> None:
        """Wait until every partition has all its copies, and every database node reads from all nodes."""
        wait_until(lambda: self.lagging_partitions(prefix) == [], "all replicas in sync", IN_SYNC_S)
        for host in HOSTS:
            wait_until(lambda host=host: self.reads_from_all(host, keyspace), f"{host} sees all nodes", IN_SYNC_S)

    def lagging_partitions(self, prefix: str) -> list[str] | None:
        """Return the partitions under a prefix, and of Kafka's own topics, that lack a copy; None without an answer."""
        try:
            with admin.connect(self.running.bus) as client:
                topics = client.describe_topics()
        except (KafkaError, ServiceUnavailable):
            return None
        return [
            f"{topic['name']}[{partition['partition_index']}]"
            for topic in topics
            if topic["name"].startswith((prefix, "__consumer_offsets"))
            for partition in topic["partitions"]
            if len(partition["isr_nodes"]) < COPIES
        ]

    def reads_from_all(self, host: str, keyspace: str) -> bool:
        """Return whether a node answers a read that needs every copy."""
        profile = ExecutionProfile(
            load_balancing_policy=WhiteListRoundRobinPolicy([host]), consistency_level=ConsistencyLevel.ALL
        )
        try:
            with Cluster(
                [host],
                port=self.running.store.port,
                protocol_version=4,
                execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            ) as cluster:
                cluster.connect(keyspace).execute("SELECT run FROM epochs LIMIT 1")
        except (DriverException, NoHostAvailable):
            return False
        return True


@contextlib.contextmanager
def nodes() -> Iterator[Nodes]:
    """Yield the running nodes; they are stopped, and their data removed, at the end."""
    with contextlib.ExitStack() as stack:
        folders = [stack.enter_context(private_folder(suffix=f"-node{number}")) for number in range(1, COPIES + 1)]
        made = Nodes(folders)
        made.up()
        yield made
