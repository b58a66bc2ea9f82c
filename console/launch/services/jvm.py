"""The JVM services of one machine: a Kafka of one KRaft node, a Cassandra of one node.

They run in their home, and all their paths are relative to it: commas, ``=``, ``%`` and others mean something in lists,
agents and addresses of files.
"""

import base64
import subprocess
import uuid
from pathlib import Path
from string import Template

from console.launch.services.daemon import Home, free_port, in_use, jvm_environment, local_address
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
        write_configuration(
            home,
            "kafka/server.properties",
            host=self.host,
            port=self.port,
            controller_port=free_port(),
            data=home.data.name,
        )
        write_configuration(home, "kafka/log4j2.xml")
        link_jars(home, jars)
        options = [f"@{RECIPES / self.name / 'jvm.options'}", "-Dlog4j2.configurationFile=log4j2.xml"]
        base = [str(java), *options, "-cp", "jars/*"]
        if not (home.data / "meta.properties").exists():
            cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
            # An id that starts with a dash would be read as an option.
            format_storage(home, base, f"--cluster-id={cluster_id}")
        heap = f"-Xmx{self.heap_mb}m"
        return [*base, *self.compilers, heap, *home.marks(self.port), "kafka.Kafka", "server.properties"]


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
        port = storage_port(home)
        write_configuration(
            home, "cassandra/cassandra.yaml", host=self.host, port=self.port, storage_port=port, data=home.data.name
        )
        write_configuration(home, "cassandra/logback.xml")
        link_jars(home, jars)
        agents = sorted(jars.glob("jamm-*.jar"))
        if not agents:
            raise ServiceUnavailable(f"{jars} has no jamm jar: remove that folder, it will be fetched again")
        return [
            str(java),
            f"@{RECIPES / self.name / 'jvm.options'}",
            *self.compilers,
            f"-javaagent:jars/{agents[0].name}",
            f"-Xmx{self.heap_mb}m",
            "-Dlogback.configurationFile=logback.xml",
            "-Dcassandra.config=file:cassandra.yaml",
            f"-Dcassandra.storagedir={home.data.name}",
            "-Dcassandra.logdir=.",
            *home.marks(self.port),
            "-cp",
            "jars/*",
            "org.apache.cassandra.service.CassandraDaemon",
        ]


Service = Kafka | Cassandra
"""A JVM service at ``host`` and ``port``, which the key ``setting`` configures.

``overhead_mb`` is its memory beyond the heap, ``slack_us`` its timer slack.
"""


def compiler_options(services: Services) -> list[str]:
    """Return the JVM's argument that enables the second compiler."""
    return ["-XX:TieredStopAtLevel=4"] if services.optimise else []


def write_configuration(home: Home, template: str, **values: object) -> None:
    """Write a filled template of deploy/local into a service's home."""
    source = RECIPES / template
    home.folder.mkdir(parents=True, exist_ok=True)
    text = Template(source.read_text(encoding="utf-8")).substitute(values)
    (home.folder / source.name).write_text(text, encoding="utf-8")


def link_jars(home: Home, jars: Path) -> None:
    """Make ``jars`` in a service's home a link to the folder of its jars."""
    link = home.folder / "jars"
    link.unlink(missing_ok=True)
    link.symlink_to(jars.absolute())


def format_storage(home: Home, java: list[str], *options: str) -> None:
    """Format an empty log folder, as KRaft requires; ``java`` is the command without a class."""
    command = [*java, "kafka.tools.StorageTool", "format", "--ignore-formatted", "-c", "server.properties", *options]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=FORMAT_S,
            check=False,
            cwd=home.folder,
            env=jvm_environment(),
        )
    except subprocess.TimeoutExpired:
        raise ServiceUnavailable(f"Kafka's storage tool took longer than {FORMAT_S} s") from None
    if done.returncode != 0:
        raise ServiceUnavailable(f"Kafka's log folder could not be made:\n{(done.stdout + done.stderr).strip()[-800:]}")


def storage_port(home: Home) -> int:
    """Return the port for other nodes, the same at each start: it is part of the node's identity."""
    noted = home.folder / "storage_port"
    text = noted.read_text(encoding="utf-8").strip() if noted.exists() else ""
    if text.isdecimal() and not in_use("127.0.0.1", int(text)):
        return int(text)
    port = free_port()
    noted.parent.mkdir(parents=True, exist_ok=True)
    noted.write_text(f"{port}\n", encoding="utf-8")
    return port
