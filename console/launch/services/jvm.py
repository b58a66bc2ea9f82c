"""The JVM services of one machine: a Kafka of one KRaft node, a Cassandra of one node."""

import base64
import subprocess
import uuid
from pathlib import Path
from string import Template

from console.launch.services.daemon import Home, free_port, in_use, local_address
from dart_streams.config import Bus, Services, Store
from dart_streams.connection.protocol_probes import speaks_cql, speaks_kafka
from dart_streams.errors import ServiceUnavailable
from dart_streams.java import RECIPES

FORMAT_S = 300


class Kafka:
    """A broker that is its own controller."""

    name = "kafka"
    title = "Kafka"
    setting = "bus.servers"
    overhead_mb = 150
    slack_us = 0

    def __init__(self, bus: Bus, services: Services) -> None:
        self.host, self.port = local_address(bus.servers, self.setting)
        self.heap_mb = services.kafka_heap_mb
        self.compilers = compiler_options(services)

    def answers(self, timeout_s: float = 2.0) -> bool:
        """Return whether the broker takes requests."""
        return speaks_kafka(self.host, self.port, timeout_s)

    def prepare(self, home: Home, java: Path, jars: Path) -> list[str]:
        """Write the configuration, format the log folder once, and return the command that runs the broker."""
        places = {"host": self.host, "port": self.port, "controller_port": free_port(), "data": home.data}
        settings = write_configuration("kafka/server.properties", home, **places)
        recipes = RECIPES / self.name
        options = [f"@{recipes / 'jvm.options'}", f"-Dlog4j2.configurationFile={recipes / 'log4j2.xml'}"]
        base = [str(java), *options, "-cp", f"{jars}/*"]
        if not (home.data / "meta.properties").exists():
            format_storage([*base, "kafka.tools.StorageTool"], settings)
        return [*base, *self.compilers, f"-Xmx{self.heap_mb}m", *home.marks(self.port), "kafka.Kafka", str(settings)]


class Cassandra:
    """A node that is a whole cluster."""

    name = "cassandra"
    title = "Cassandra"
    setting = "store.port"
    overhead_mb = 400
    slack_us = 1000

    def __init__(self, store: Store, services: Services) -> None:
        self.host, self.port = local_address(f"{','.join(store.hosts)}:{store.port}", "store.hosts with store.port")
        self.heap_mb = services.cassandra_heap_mb
        self.compilers = compiler_options(services)

    def answers(self, timeout_s: float = 2.0) -> bool:
        """Return whether the node takes CQL requests."""
        return speaks_cql(self.host, self.port, timeout_s)

    def prepare(self, home: Home, java: Path, jars: Path) -> list[str]:
        """Write the configuration and return the command that runs the node."""
        places = {"host": self.host, "port": self.port, "storage_port": storage_port(home), "data": home.data}
        settings = write_configuration("cassandra/cassandra.yaml", home, **places)
        agents = sorted(jars.glob("jamm-*.jar"))
        if not agents:
            raise ServiceUnavailable(f"{jars} has no jamm jar: remove that folder, it will be fetched again")
        recipes = RECIPES / self.name
        return [
            str(java),
            f"@{recipes / 'jvm.options'}",
            *self.compilers,
            f"-javaagent:{agents[0]}",
            f"-Xmx{self.heap_mb}m",
            f"-Dlogback.configurationFile={recipes / 'logback.xml'}",
            f"-Dcassandra.config=file://{settings}",
            f"-Dcassandra.storagedir={home.data}",
            f"-Dcassandra.logdir={home.folder}",
            *home.marks(self.port),
            "-cp",
            f"{jars}/*",
            "org.apache.cassandra.service.CassandraDaemon",
        ]


Service = Kafka | Cassandra
"""A JVM service at ``host`` and ``port``, which the key ``setting`` configures.

``overhead_mb`` is its memory beyond the heap, ``slack_us`` its timer slack.
"""


def compiler_options(services: Services) -> list[str]:
    """Return the JVM's argument that enables the second compiler."""
    return ["-XX:TieredStopAtLevel=4"] if services.optimise else []


def write_configuration(template: str, home: Home, **values: object) -> Path:
    """Write a filled template of deploy/local into ``home``, and return its path."""
    source = RECIPES / template
    home.folder.mkdir(parents=True, exist_ok=True)
    path = home.folder / source.name
    path.write_text(Template(source.read_text()).substitute(values))
    return path


def format_storage(tool: list[str], settings: Path) -> None:
    """Format an empty log folder with a cluster id, as KRaft requires."""
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    # An id that starts with a dash would be read as an option.
    command = [*tool, "format", "--ignore-formatted", f"--cluster-id={cluster_id}", "-c", str(settings)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FORMAT_S, check=False)
    except subprocess.TimeoutExpired:
        raise ServiceUnavailable(f"Kafka's storage tool took longer than {FORMAT_S} s") from None
    if done.returncode != 0:
        raise ServiceUnavailable(f"Kafka's log folder could not be made:\n{(done.stdout + done.stderr).strip()[-800:]}")


def storage_port(home: Home) -> int:
    """Return the port for other nodes, the same at each start: it is part of the node's identity."""
    noted = home.folder / "storage_port"
    if noted.exists() and (text := noted.read_text().strip()).isdecimal() and not in_use("127.0.0.1", int(text)):
        return int(text)
    port = free_port()
    noted.parent.mkdir(parents=True, exist_ok=True)
    noted.write_text(f"{port}\n")
    return port
