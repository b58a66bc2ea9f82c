"""The local Kafka: one KRaft node."""

import base64
import subprocess
import uuid
from pathlib import Path

from dart_streams.config import Bus, Services
from dart_streams.connection.protocol_probes import speaks_kafka
from dart_streams.errors import ServiceUnavailable
from dart_streams.launch.services.address import local_address
from dart_streams.launch.services.daemon import Home
from dart_streams.launch.services.jars import RECIPES
from dart_streams.launch.services.ports import free_port
from dart_streams.launch.services.service import compilers, write_configuration

FORMAT_S = 60


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
        self.compilers = compilers(services)

    def answers(self, timeout_s: float = 2.0) -> bool:
        """Return whether the broker takes requests."""
        return speaks_kafka(self.host, self.port, timeout_s)

    def prepare(self, home: Home, java: Path, jars: Path) -> list[str]:
        """Write the configuration, format the log folder once, and return the command that runs the broker."""
        settings = write_configuration(
            self.name,
            "server.properties",
            home,
            host=self.host,
            port=self.port,
            controller_port=free_port(),
            data=home.data,
        )
        recipes = RECIPES / self.name
        base = [
            str(java),
            f"@{recipes / 'jvm.options'}",
            f"-Dlog4j2.configurationFile={recipes / 'log4j2.xml'}",
            "-cp",
            f"{jars}/*",
        ]
        if not (home.data / "meta.properties").exists():
            format_storage([*base, "kafka.tools.StorageTool"], settings)
        return [*base, *self.compilers, f"-Xmx{self.heap_mb}m", *home.marks(self.port), "kafka.Kafka", str(settings)]


def format_storage(tool: list[str], settings: Path) -> None:
    """Give an empty log folder its cluster id, as KRaft wants before the first start."""
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    # An id that starts with a dash would be read as an option.
    command = [*tool, "format", "--ignore-formatted", f"--cluster-id={cluster_id}", "-c", str(settings)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FORMAT_S, check=False)
    except subprocess.TimeoutExpired:
        raise ServiceUnavailable(f"Kafka's storage tool took longer than {FORMAT_S} s") from None
    if done.returncode != 0:
        raise ServiceUnavailable(f"Kafka's log folder could not be made:\n{(done.stdout + done.stderr).strip()[-800:]}")
