"""The local Cassandra: one node."""

from pathlib import Path

from dart_streams.config import Services, Store
from dart_streams.connection.protocol_probes import speaks_cql
from dart_streams.errors import ServiceUnavailable
from dart_streams.launch.services.address import local_address
from dart_streams.launch.services.daemon import Home
from dart_streams.launch.services.jars import RECIPES
from dart_streams.launch.services.ports import free_port, in_use
from dart_streams.launch.services.service import compilers, write_configuration


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
        self.compilers = compilers(services)

    def answers(self, timeout_s: float = 2.0) -> bool:
        """Return whether the node takes CQL requests."""
        return speaks_cql(self.host, self.port, timeout_s)

    def prepare(self, home: Home, java: Path, jars: Path) -> list[str]:
        """Write the configuration and return the command that runs the node."""
        settings = write_configuration(
            self.name,
            "cassandra.yaml",
            home,
            host=self.host,
            port=self.port,
            storage_port=storage_port(home),
            data=home.data,
        )
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


def storage_port(home: Home) -> int:
    """Return the port for other nodes: the one this node has always had, for it is part of the node's identity."""
    noted = home.folder / "storage_port"
    if noted.exists() and (text := noted.read_text().strip()).isdecimal() and not in_use("127.0.0.1", int(text)):
        return int(text)
    port = free_port()
    noted.parent.mkdir(parents=True, exist_ok=True)
    noted.write_text(f"{port}\n")
    return port
